"""Addresses, ports, sockets and HTTP servers. Knows nothing of jobs."""
