"""Linux and process primitives: signals, descriptors, limits, locks, /proc. Independent of jobs."""
