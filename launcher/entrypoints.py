"""The entry points of the commands. They import the rest, so that Ctrl-C during imports prints no stack trace."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.system import frozen_imports


def launch() -> int:
    """Run `elastic-launch`; return its exit code."""
    _reset_sigchld()
    with _interruptible(), frozen_imports.frozen_imports():
        from launcher.cli import main
    return main()


def ctl() -> int:
    """Run `elastic-ctl`; return its exit code."""
    _reset_sigchld()
    with _interruptible(), frozen_imports.frozen_imports():
        from launcher.ctl.cli import main
    return main()


def _reset_sigchld() -> None:
    """Undo an ignored SIGCHLD, which some daemons pass on: with it no process learns how its children have ended."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGINT end the process silently, as by default; an ignored SIGINT stays ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
