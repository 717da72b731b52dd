"""The workers of a node as the agent sees them: environment, start, stop, exit codes, checkpoint claims."""
