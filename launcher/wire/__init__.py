"""The messages between agents, and between operators and agents, as values and lines of text (pure)."""
