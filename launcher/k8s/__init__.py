"""Jobs and JobSets of Kubernetes: how many pods they have, who changes it, and the autoscaler that decides it."""
