"""The collectives of the library: messages of bytes, broadcasts of trees, redistribution of shards."""
