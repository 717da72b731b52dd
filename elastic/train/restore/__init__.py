"""Restores the state: all ranks agree on one checkpoint and continue from it."""
