"""The autoscaler of Kubernetes: what it decides, and what it reads."""
