"""This node's workers: what they are to run, how they start, stop and end, and what is recorded of that (pure)."""
