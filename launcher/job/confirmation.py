"""Confirmation before `elastic-ctl` does something that cannot be undone.

Every such command asks on a terminal, and `--yes` skips the question. Without a terminal the command runs without a
question, unless it deletes data: then it needs `--yes`.
"""

from __future__ import annotations

import sys

from elastic.errors import ConfigError, ElasticError
from launcher.system.stdout import print_result


class NotConfirmed(ElasticError):
    """The user did not confirm. Nothing was changed."""

    exit_code = 1


def on_a_terminal() -> bool:
    """Return whether a user can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, declined: str, *, deletes: str = "") -> None:
    """Ask, if there is a terminal. Raises `NotConfirmed` with `declined` unless the answer is yes.

    Without a terminal it returns; if `deletes` names data that would be deleted, it raises `ConfigError` instead.
    """
    if not on_a_terminal():
        if deletes:
            raise ConfigError(f"{deletes}; without a terminal, add --yes")
        return
    print_result(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed(declined)
