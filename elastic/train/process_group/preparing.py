"""`elastic.preparing` and `elastic.ready`: a worker that is alive and not ready to train yet."""

from __future__ import annotations

import os

from elastic.channel.messages import truncate_text
from elastic.train.process_group import rendezvous
from elastic.train.report import this_process


def preparing(what: str) -> None:
    """Say that this worker is alive and not ready to train yet: `elastic.preparing("downloading the data")`.

    Until `elastic.ready()`, `elastic.init()` or the first report, nobody takes it for stuck, and workers that wait
    for it in `elastic.init()` know why. May be called again with another text. Never waits, never raises.
    """
    this_process.preparing(what)
    if (before := rendezvous.current(os.environ, this_process.end)) is not None:
        before.announce(truncate_text(str(what), rendezvous.REASON_MAX) or "preparing")


def ready() -> None:
    """End what `elastic.preparing` began."""
    this_process.ready()
    if (before := rendezvous.current(os.environ, this_process.end)) is not None:
        before.announce("")
