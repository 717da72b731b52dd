"""Preemption notices of clouds: each provider's metadata server, how the agent polls it, what its answers mean."""
