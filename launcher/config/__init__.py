"""Reads and checks flags and environment variables: from a command line to one frozen `Config`."""
