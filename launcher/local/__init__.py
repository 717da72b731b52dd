"""Several nodes on one host, an etcd that this host runs, and the demo."""
