"""The memory tier: it holds the newest commits in memory that outlives the workers of a node."""
