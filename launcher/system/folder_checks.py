"""Checks that directories are writable and that their disks have free space. Creates no directory."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from elastic._text import size_text
from launcher.system.checks import Check, fail, ok, warn, warning

FREE_MIN = 1_000_000_000
FREE_SHARE_MIN = 0.05
"""Below either of them a disk counts as nearly full."""
ANSWER_LIMIT_S = 5.0
"""A disk that has not answered by then has another problem than its owner or its free space."""
LOG = ("log directory", "--log-dir")
CHECKPOINTS = ("checkpoint directory", "--checkpoint-dir")
"""The name of each check, and its flag."""

Usage = Callable[[Path], tuple[int, int, int]]
"""The total, used and free bytes."""


def folder_check(which: tuple[str, str], folder: Path, usage: Usage | None = None) -> Check:
    """Check whether a directory can be written or created, and whether its disk has free space."""
    name, flag = which
    folder = Path(os.path.abspath(folder))
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    hint = f"use another one with {flag}, or change its owner"
    if not there.is_dir():
        return fail(name, f"{there} is a file", hint)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
        total, _, free = (usage or shutil.disk_usage)(there)
    except OSError as error:
        room = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else hint
        return fail(name, f"{there} cannot be written ({error.strerror})", room)
    state = "is writable" if there == folder else "can be created"
    text = f"{folder} {state}, {size_text(free)} free of {size_text(total)}"
    if free < FREE_MIN or free < FREE_SHARE_MIN * total:
        return warn(name, text, "its disk is nearly full")
    return ok(name, text)


def folder_warning(which: tuple[str, str], folder: Path) -> str:
    """Return an agent's warning about a directory at its start, "" without one. It waits at most `ANSWER_LIMIT_S`."""
    found: SimpleQueue[Check] = SimpleQueue()
    Thread(target=lambda: found.put(folder_check(which, folder)), daemon=True).start()
    try:
        check = found.get(timeout=ANSWER_LIMIT_S)
    except Empty:
        return f"{which[0]}: {folder} has not answered for {ANSWER_LIMIT_S:g} s; fix its disk, or use another directory"
    return warning(check)
