"""All ranks agree on one checkpoint and continue from it."""
