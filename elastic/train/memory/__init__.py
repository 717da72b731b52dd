"""In-memory checkpoints: the newest commits in memory that outlives the workers of a node."""
