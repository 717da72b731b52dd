"""Samples in an exact order, whatever the world size: samplers, streams, batch sizes."""
