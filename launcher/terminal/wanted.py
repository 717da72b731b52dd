"""Whether there is to be a live status, and how one is taken away that its process could not take away."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from launcher.config.config import Config
from launcher.logs.console import Console
from launcher.terminal.screen import WIPE


def may_draw(config: Config, environ: Mapping[str, str]) -> bool:
    """Whether nobody switched it off."""
    switched_off = config.no_live or config.quiet or config.log_format != "text"
    plain = "NO_COLOR" in environ or "CI" in environ or environ.get("TERM", "dumb") == "dumb"
    return not switched_off and not plain


def wanted(config: Config, environ: Mapping[str, str], consoles: tuple[Console, Console]) -> bool:
    """Whether there is to be a live status: on a terminal that has both outputs, where nobody switched it off."""
    return consoles[0] is consoles[1] and consoles[1].is_terminal and may_draw(config, environ)


def wipe(fd: int) -> None:
    """Take a status away that stands below the cursor."""
    with suppress(OSError):
        os.write(fd, WIPE)
