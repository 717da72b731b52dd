"""Whether this process may draw on its terminal, and how a block that another process left there is wiped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from launcher.config.worker_settings import LogSettings
from launcher.logs.console import Console
from launcher.system.processes import stat_fields
from launcher.terminal.screen import WIPE


def in_foreground(terminal: int) -> bool:
    """Whether the job of this process, or of its parent, is in the foreground of the terminal that `terminal` is.

    An agent that another process of ours started is in a session of its own, which has no terminal.
    """
    try:
        device = os.fstat(terminal).st_rdev
    except OSError:
        return False
    stats = filter(None, map(stat_fields, (os.getpid(), os.getppid())))
    return any(int(device_field) == device and group == front for _, _, group, _, device_field, front, *_ in stats)


def may_draw(settings: LogSettings, environ: Mapping[str, str]) -> bool:
    """Whether nobody switched it off."""
    switched_off = settings.no_live or settings.quiet or settings.log_format != "text"
    plain = "NO_COLOR" in environ or "CI" in environ or environ.get("TERM", "dumb") == "dumb"
    return not switched_off and not plain


def wanted(settings: LogSettings, environ: Mapping[str, str], consoles: tuple[Console, Console]) -> bool:
    """Whether there is to be a live status: on a terminal that has both outputs, where nobody switched it off."""
    return consoles[0] is consoles[1] and consoles[1].is_terminal and may_draw(settings, environ)


def wipe(fd: int) -> None:
    """Take a status away that stands below the cursor."""
    with suppress(OSError):
        os.write(fd, WIPE)
