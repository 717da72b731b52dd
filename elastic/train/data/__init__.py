"""Samplers, streams and batch sizes that keep the data order exact at any world size."""
