"""Machines that pause: all processes of a node stop at the same moment, as in a suspended virtual machine.

The freezer of cgroups stops them, without a signal that a parent could see. Where no cgroup can be made, SIGSTOP goes
to one after the other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.hosts import Host

CGROUPS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
"""Where cgroups of version 2 may be mounted."""
ENTER = 'echo $$ > "$0" && exec "$@"'
"""In a shell: whatever it becomes is in the cgroup whose `cgroup.procs` is its first argument."""
ENDS_LIMIT_S = 10.0


def make_cgroup() -> Path | None:
    """A new cgroup with a freezer, None if there can be none here."""
    for root in CGROUPS:
        if (root / "cgroup.procs").exists():
            with contextlib.suppress(OSError):
                made = root / f"elastic-bench-{secrets.token_hex(4)}"
                made.mkdir()
                if (made / "cgroup.freeze").exists():
                    return made
                made.rmdir()
    return None


class Machine:
    """A host whose processes can be paused together."""

    def __init__(self, host: Host) -> None:
        """Nothing runs there yet."""
        self.host = host
        self._cgroup = make_cgroup()

    @property
    def way(self) -> str:
        """What pauses it."""
        return "SIGSTOP" if self._cgroup is None else "the freezer of cgroups"

    def command(self, words: Sequence[str]) -> list[str]:
        """How a command is started here."""
        inside = self.host.command(words)
        return inside if self._cgroup is None else ["sh", "-c", ENTER, str(self._cgroup / "cgroup.procs"), *inside]

    def pause(self, seconds: float) -> None:
        """Suspend all its processes for this time."""
        self._freeze(frozen=True)
        time.sleep(seconds)
        self._freeze(frozen=False)

    def remove(self) -> None:
        """Take its cgroup away; everything there has been killed."""
        if self._cgroup is None:
            return
        deadline = time.monotonic() + ENDS_LIMIT_S
        while "populated 1" in (self._cgroup / "cgroup.events").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._cgroup.rmdir()

    def _freeze(self, *, frozen: bool) -> None:
        if self._cgroup is not None:
            (self._cgroup / "cgroup.freeze").write_text("1" if frozen else "0")
            return
        for pid in self.host.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)
