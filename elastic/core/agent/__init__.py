"""The state machine of one agent: events in, actions out (pure)."""
