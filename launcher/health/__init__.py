"""Detectors for hung workers and for network partitions (pure)."""
