"""Memory that outlives the workers of a node: named segments that the agent keeps, and their limit.

A segment is a memfd: it has no name in the file system, and the kernel frees it when the agent and every worker that
has it are gone, however they ended. It can neither grow nor shrink, so a worker cannot use more than it requested.
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
"""The fraction of the memory available at the first request that all segments of a node may use together."""
NAMES_MAX = 1024

_CGROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


class SegmentRefused(Exception):
    """The segment is not available; the text says why, for people."""


class Segments:
    """The segments of one node, by name. Not thread-safe."""

    def __init__(self, limit_bytes: int | None = None, *, available: Callable[[], int] | None = None) -> None:
        """`limit_bytes` limits all segments together; None: `SHARE` of `available()` at the first request."""
        self._limit = limit_bytes
        self._available = available or available_bytes
        self._kept: dict[str, tuple[int, int]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all segments."""
        return tuple(self._kept)

    @property
    def total_bytes(self) -> int:
        """The size of all segments together."""
        return sum(size for _, size in self._kept.values())

    def want(self, name: str, size: int) -> tuple[int, int]:
        """Return the descriptor, which this object keeps, and the size in bytes of the segment `name`.

        A missing segment is created, unless `size` is 0; a segment of another size is replaced by an empty one. Raises
        `SegmentRefused`.
        """
        segment = self._kept.get(name)
        if segment is not None and size in (0, segment[1]):
            return segment
        if size == 0:
            raise SegmentRefused("it does not exist")
        needed = self.total_bytes - (segment[1] if segment is not None else 0) + size
        limit = self._limit_bytes()
        if needed > limit:
            raise SegmentRefused(
                f"in-memory checkpoints need {size_text(needed)} on this node, {size_text(limit)} is "
                "allowed (--memory-limit)"
            )
        if segment is None and len(self._kept) >= NAMES_MAX:
            raise SegmentRefused(f"this node keeps {NAMES_MAX} pieces of memory already")
        self._drop(name)
        try:
            self._kept[name] = _make(size), size
        except (OSError, OverflowError) as error:
            raise SegmentRefused(f"cannot allocate {size_text(size)} of memory on this host ({error})") from error
        return self._kept[name]

    def drop_all(self) -> None:
        """Drop every segment. The kernel frees each of them once no worker uses it."""
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
    """Return the bytes that this host and the container of this process can provide without swapping."""
    return within_cgroups(psutil.virtual_memory().available)


def within_cgroups(machine_bytes: int, cgroups: Path = _CGROUPS, mount: Path = _MOUNT) -> int:
    """Return how many of the bytes available on the host the container of this process may still use."""
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
    """Yield what each cgroup, from this one outwards, has left of its limit; reclaimable file cache counts as free."""
    inside = PurePosixPath(path.lstrip("/"))
    for folder in (inside, *inside.parents):  # In a container, its own cgroup is the root, whatever the path says.
        with suppress(OSError, ValueError):  # The limit is "max", or there is none.
            most, used = (int((top / folder / name).read_text()) for name in (limit, usage))
            statistics = dict(line.split() for line in (top / folder / "memory.stat").read_text().splitlines())
            yield max(0, most - used + int(statistics.get(cache, 0)))
