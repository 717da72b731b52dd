"""Another local user of this machine, as which a script runs: what he can do to the files and sockets of ours."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")

BECOME = f"""
import fcntl, os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
"""How a script begins: python itself may lie where only root can read."""

LOCKER = """
try:
    file = open(sys.argv[1])
    fcntl.flock(file, getattr(fcntl, sys.argv[2]))
    print("locked", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
sys.stdin.read()
"""
"""Opens a file for reading, locks it if it can, and keeps the lock until its stdin is closed."""


@contextlib.contextmanager
def stranger(script: str, *words: str) -> Iterator[str]:
    """What a script says first that another user runs; its stdin is closed at the end of the block."""
    command = (sys.executable, "-I", "-c", BECOME + script, *words)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rstrip("\n")
        finally:
            process.stdin.close()


@contextlib.contextmanager
def seen_by_all() -> Iterator[Path]:
    """A fresh folder of ours that every user can enter; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="elastic-test-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)
