"""`elastic.launch`: restarts a script, which a user started with plain `python`, under elastic-launch."""
