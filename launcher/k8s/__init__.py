"""Jobs and JobSets of Kubernetes: the autoscaler, and how it and elastic-ctl change the number of pods."""
