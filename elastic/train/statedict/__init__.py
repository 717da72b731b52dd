"""State dicts: what a state consists of, taken apart, copied to host memory, and put together again."""
