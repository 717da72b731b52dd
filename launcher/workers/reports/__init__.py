"""What the workers of a node report, and what their output tells: progress, states, stacks, tracebacks."""
