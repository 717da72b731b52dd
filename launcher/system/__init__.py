"""Linux and process primitives: signals, descriptors, limits, locks, /proc. Knows nothing of jobs."""
