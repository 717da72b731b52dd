"""The collectives of the library: broadcasts of bytes, trees of tensors, redistribution of shards."""
