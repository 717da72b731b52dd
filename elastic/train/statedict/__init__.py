"""State dicts: taken apart, copied to host memory, sharded, and put together again."""
