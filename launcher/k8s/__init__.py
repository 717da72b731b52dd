"""The Kubernetes autoscaler: it reads a Job and its pods, and sets the number of pods."""
