"""Flags and environment variables, read and checked: from a command line to one frozen `Config`."""
