"""A process of our own beside the agent: begun while no thread runs."""

from __future__ import annotations

import os

from elastic.errors import ConfigError


def fork(what: str) -> int:
    """As `os.fork`. Raises `ConfigError` where there can be no further process; `what` says what it does."""
    try:
        return os.fork()
    except OSError as error:
        raise ConfigError(
            f"a process that {what} cannot be started ({error.strerror}); this machine or user may have too many "
            "(`ulimit -u`), or too little memory is left"
        ) from error
