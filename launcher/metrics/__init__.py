"""The HTTP endpoints of an agent for monitoring: Prometheus metrics, liveness and readiness."""
