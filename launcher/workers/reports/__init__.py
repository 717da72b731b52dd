"""What the agent learns from workers and from their output: progress, states, stacks, tracebacks."""
