"""Addresses, ports, sockets and HTTP servers. Independent of jobs."""
