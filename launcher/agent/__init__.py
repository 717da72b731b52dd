"""The agent of a node: it passes events to the core (`elastic.core.agent`), performs the actions, and reports."""
