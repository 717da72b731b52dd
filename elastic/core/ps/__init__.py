"""The rules of parameter-server jobs (pure)."""
