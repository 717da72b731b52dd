"""The fork server of a node's workers: everything that runs in its process, or in a worker before its script."""
