"""The protocols between agents, and between operators and agents, as values and lines (pure)."""
