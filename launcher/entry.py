"""The commands as a shell starts them: what they need is imported here, where Ctrl-C is no stack trace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from launcher import loading


def launch() -> int:
    """Run `elastic-launch`; its exit code."""
    with _interruptible(), loading.kept():
        from launcher.cli import main
    return main()


def ctl() -> int:
    """Run `elastic-ctl`; its exit code."""
    with _interruptible(), loading.kept():
        from launcher.ctl import main
    return main()


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT ends the process as it ends any other, without a word; one that is ignored stays ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
