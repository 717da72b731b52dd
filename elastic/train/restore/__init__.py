"""Restores the state: all ranks agree on one checkpoint and resume from it."""
