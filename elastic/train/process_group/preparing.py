"""`elastic.preparing` and `elastic.ready`: a worker that is alive and not ready to train yet."""

from __future__ import annotations

import os
from typing import Final

from elastic.channel.messages import truncate_text
from elastic.train.process_group import rendezvous
from elastic.train.report import this_process

_blocks: Final[list[str]] = []
"""The texts of the `with` blocks that this process is in, the outermost first."""


class Preparation:
    """What `elastic.preparing` returns: the preparation ends with the `with` block."""

    def __init__(self, what: str) -> None:
        """Remember the text, which was announced."""
        self._what = what

    def __enter__(self) -> None:
        """Enter a block that prepares."""
        _blocks.append(self._what)

    def __exit__(self, *error: object) -> None:
        """Go back to what the block around this one prepares; without one the worker is ready. Passes errors on."""
        _blocks.pop()
        if _blocks:
            _announce(_blocks[-1])
        else:
            ready()


def preparing(what: str) -> Preparation:
    """Say that this worker is alive and not ready to train yet.

    The agent then does not take the worker for stuck, and workers that wait for it in `elastic.init()` say why::

        with elastic.preparing("downloading the data"):
            download()

    Call it before `elastic.init()`, or after it and before the first step. The preparation ends with the block, also
    when an exception leaves it. Without `with` it ends at `elastic.ready()`; `elastic.init()` and the next report end
    it in any case. A second call replaces the text. Returns at once, and raises nothing. The text is shown when others
    have waited for 10 s.

    Args:
        what: What takes long, in a few words. Other workers repeat its first 200 characters.

    Returns:
        A context manager for the time of the preparation.
    """
    _announce(what)
    return Preparation(what)


def ready() -> None:
    """Say that this worker is ready to train: it ends what `elastic.preparing` began.

    Does nothing if nothing is prepared. Returns at once, and raises nothing.
    """
    this_process.ready()
    if (before := rendezvous.current(os.environ, this_process.end)) is not None:
        before.announce("")


def _announce(what: str) -> None:
    this_process.preparing(what)
    if (before := rendezvous.current(os.environ, this_process.end)) is not None:
        before.announce(truncate_text(str(what), rendezvous.REASON_MAX) or "preparing")
