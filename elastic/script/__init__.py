"""`elastic.launch`: restarts a script under elastic-launch that a user started with plain `python`."""
