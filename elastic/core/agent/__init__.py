"""One agent's state machine: events in, actions out (pure)."""
