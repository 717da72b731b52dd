"""Several nodes on one machine, an etcd that this machine serves, and the demo."""
