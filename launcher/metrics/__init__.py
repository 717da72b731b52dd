"""Metrics and health endpoints of an agent."""
