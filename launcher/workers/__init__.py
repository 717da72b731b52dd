"""One node's workers as its agent sees them: their environment, start, stop, exits and claims."""
