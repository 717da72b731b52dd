"""The commands as a shell starts them: what they need is imported here, where Ctrl-C is no stack trace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.system import frozen_imports


def launch() -> int:
    """Run `elastic-launch`; its exit code."""
    _reset_sigchld()
    with _interruptible(), frozen_imports.frozen_imports():
        from launcher.cli import main
    return main()


def ctl() -> int:
    """Run `elastic-ctl`; its exit code."""
    _reset_sigchld()
    with _interruptible(), frozen_imports.frozen_imports():
        from launcher.ctl.cli import main
    return main()


def _reset_sigchld() -> None:
    """Some daemons ignore SIGCHLD, and so would what they start: nobody could learn how a child has ended."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT ends the process as it ends any other, without a word; one that is ignored stays ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
