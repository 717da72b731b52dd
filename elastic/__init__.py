"""The elastic-launch library: what a training script imports, and the core that the launcher runs on."""
