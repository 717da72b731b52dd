"""This node's workers: what they run, how they start, stop and end, and what the node records about them (pure)."""
