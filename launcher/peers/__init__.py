"""Links between agents: failure detection, reachability and network partitions."""
