"""Which nodes form the next generation, and when its workers may start (pure)."""
