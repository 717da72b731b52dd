"""Decides whether this process may draw on its terminal, and erases a block that another process left there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from launcher.config.worker_settings import LogSettings
from launcher.logs.console import Console
from launcher.system.processes import stat_fields
from launcher.terminal.screen import WIPE


def in_foreground(terminal: int) -> bool:
    """Return whether this process, or its parent, is in the foreground job of this terminal.

    An agent that a local supervisor started has a separate session without a terminal.
    """
    try:
        device = os.fstat(terminal).st_rdev
    except OSError:
        return False
    stats = filter(None, map(stat_fields, (os.getpid(), os.getppid())))
    return any(int(device_field) == device and group == front for _, _, group, _, device_field, front, *_ in stats)


def may_draw(settings: LogSettings, environ: Mapping[str, str]) -> bool:
    """Return whether flags and environment enable the status."""
    switched_off = settings.no_live or settings.quiet or settings.log_format != "text"
    plain = "NO_COLOR" in environ or "CI" in environ or environ.get("TERM", "dumb") == "dumb"
    return not switched_off and not plain


def wanted(settings: LogSettings, environ: Mapping[str, str], consoles: tuple[Console, Console]) -> bool:
    """Return whether to show a live status: it is enabled, and both outputs go to one terminal."""
    return consoles[0] is consoles[1] and consoles[1].is_terminal and may_draw(settings, environ)


def wipe(fd: int) -> None:
    """Erase a status block below the cursor."""
    with suppress(OSError):
        os.write(fd, WIPE)
