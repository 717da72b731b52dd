"""Who is in the next generation, and when its workers may start (pure)."""
