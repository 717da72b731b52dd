"""Several nodes on one machine, the etcd that this machine serves, and the demo."""
