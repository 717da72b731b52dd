"""The agent of a node: it drives the core (`elastic.core.agent`), performs its actions, and reports."""
