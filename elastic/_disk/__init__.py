"""Atomic replacement of files, and temporary directories that are removed even after a process was killed."""
