"""Samples in an exact order over world changes: samplers, streams, batch sizes."""
