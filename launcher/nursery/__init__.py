"""The fork server of a node: all code that runs in its process, or in a worker before the script starts."""
