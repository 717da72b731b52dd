"""The commands: elastic-launch and elastic-ctl."""

__version__ = "0.1.0"
