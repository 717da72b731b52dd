"""Collectives of the library: messages as bytes, trees of tensors, redistribution of shards."""
