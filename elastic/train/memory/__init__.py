"""The memory tier: the newest commits in memory that outlives the workers of a node."""
