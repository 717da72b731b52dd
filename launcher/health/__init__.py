"""Detectors for workers that hang and for networks that are split (pure)."""
