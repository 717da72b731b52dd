"""`elastic.preparing` and `elastic.ready`: report that a worker is alive but not ready to train yet."""

from __future__ import annotations

import os
from typing import Final

from elastic.channel.messages import truncate_text
from elastic.train.process_group import rendezvous
from elastic.train.report import this_process

_blocks: Final[list[str]] = []
"""The texts of the active `with` blocks of this process, the outermost first."""


class Preparation:
    """The context manager that `elastic.preparing` returns: the preparation ends with its block."""

    def __init__(self, what: str) -> None:
        """`what` is the text, which is already announced."""
        self._what = what

    def __enter__(self) -> None:
        """Enter the block."""
        _blocks.append(self._what)

    def __exit__(self, *error: object) -> None:
        """Announce the text of the enclosing block again; without one the worker is ready. Exceptions propagate."""
        _blocks.pop()
        if _blocks:
            _announce(_blocks[-1])
        else:
            ready()


def preparing(what: str) -> Preparation:
    """Report that this worker is alive but not ready to train yet.

    The agent then does not treat the worker as hung, and the workers that wait for it in `elastic.init()` show the
    reason once they have waited for 10 s::

        with elastic.preparing("downloading the data"):
            download()

    Call it before `elastic.init()`, or between `elastic.init()` and the first step. The preparation ends with the
    block, even if an exception leaves it. Without `with` it ends at `elastic.ready()`. `elastic.init()` and the next
    report end it in any case. A second call replaces the text. It returns immediately and never raises.

    Args:
        what: What takes long, in a few words. Other workers show its first 200 characters.

    Returns:
        A context manager that ends the preparation.
    """
    _announce(what)
    return Preparation(what)


def ready() -> None:
    """Report that this worker is ready to train: ends the preparation that `elastic.preparing` started.

    It does nothing if there is no preparation. It returns immediately and never raises.
    """
    this_process.ready()
    if (before := rendezvous.current(os.environ, this_process.end)) is not None:
        before.announce("")


def _announce(what: str) -> None:
    this_process.preparing(what)
    if (before := rendezvous.current(os.environ, this_process.end)) is not None:
        before.announce(truncate_text(str(what), rendezvous.REASON_MAX) or "preparing")
