"""State dicts: splitting, copying to host memory, sharding, and merging."""
