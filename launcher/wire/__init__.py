"""The messages between agents, and between status clients and agents, as values and lines of text (pure)."""
