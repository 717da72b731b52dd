"""`elastic-ctl logs`: the logs of workers, from the agents of the nodes that run them."""
