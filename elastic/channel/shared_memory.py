"""Memory that outlives the workers of a node: named segments that the agent keeps, and their limit.

A segment is a memfd: it has no name in any folder, and the kernel frees it when the agent and every worker that has
it are gone, however they ended. It can neither grow nor shrink, so that a worker cannot take more than it asked for.
Linux only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

from elastic._text import size_text

SHARE = 0.5
"""Of the memory that is available at the first request, all segments of a node together may take so much."""
NAMES_MAX = 1024

_CGROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


class SegmentRefused(Exception):
    """There is no such memory; the text says why, in words for people."""


class Segments:
    """The segments of one node, by name. Not for several threads."""

    def __init__(self, limit_bytes: int | None = None, *, available: Callable[[], int] | None = None) -> None:
        """`limit_bytes`: of all segments together; None: `SHARE` of what `available` says at the first request."""
        self._limit = limit_bytes
        self._available = available or available_bytes
        self._kept: dict[str, tuple[int, int]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What is there."""
        return tuple(self._kept)

    @property
    def total_bytes(self) -> int:
        """The size of all segments together."""
        return sum(size for _, size in self._kept.values())

    def want(self, name: str, size: int) -> tuple[int, int]:
        """The descriptor (it stays ours) and the size in bytes of the segment `name`, made if it is not there.

        With `size` 0 only one that is there already. One of another size is replaced by an empty one. Raises
        `SegmentRefused`.
        """
        segment = self._kept.get(name)
        if segment is not None and size in (0, segment[1]):
            return segment
        if size == 0:
            raise SegmentRefused("it is not there")
        needed = self.total_bytes - (segment[1] if segment is not None else 0) + size
        limit = self._limit_bytes()
        if needed > limit:
            raise SegmentRefused(
                f"the memory tier needs {size_text(needed)} on this node, {size_text(limit)} is "
                "allowed (--memory_limit)"
            )
        if segment is None and len(self._kept) >= NAMES_MAX:
            raise SegmentRefused(f"this node keeps {NAMES_MAX} pieces of memory already")
        self._drop(name)
        try:
            self._kept[name] = _make(size), size
        except (OSError, OverflowError) as error:
            raise SegmentRefused(f"this machine gives no memory of {size_text(size)} ({error})") from error
        return self._kept[name]

    def drop_all(self) -> None:
        """Forget every segment. The kernel frees each once no worker has it any more."""
        for name in self.names:
            self._drop(name)

    def _drop(self, name: str) -> None:
        if name in self._kept:
            os.close(self._kept.pop(name)[0])

    def _limit_bytes(self) -> int:
        if self._limit is None:
            self._limit = int(self._available() * SHARE)
        return self._limit


def _make(size: int) -> int:
    fd = os.memfd_create("elastic-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def available_bytes() -> int:
    """Memory that can be taken without swapping, of the machine and of the container that this process is in."""
    return within_cgroups(psutil.virtual_memory().available)


def within_cgroups(machine_bytes: int, cgroups: Path = _CGROUPS, mount: Path = _MOUNT) -> int:
    """How much of the memory that the machine has available the container of this process may still take."""
    available = machine_bytes
    with suppress(OSError):  # No kernel with cgroups.
        for line in cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                available = min([available, *_left(mount, path, "memory.max", "memory.current", "inactive_file")])
            elif "memory" in controllers.split(","):
                old = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                available = min([available, *_left(mount / "memory", path, *old)])
    return available


def _left(top: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """What each cgroup from this one outwards has left of its limit; the kernel gives up its file cache if need be."""
    inside = PurePosixPath(path.lstrip("/"))
    for folder in (inside, *inside.parents):  # In a container its own cgroup is the top, whatever the path says.
        with suppress(OSError, ValueError):  # The limit is "max", or there is none.
            most, used = (int((top / folder / name).read_text()) for name in (limit, usage))
            statistics = dict(line.split() for line in (top / folder / "memory.stat").read_text().splitlines())
            yield max(0, most - used + int(statistics.get(cache, 0)))
