"""Where a process listens, as the kernel has it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil

LISTENS = 0x10000
"""The flag of a Unix socket that takes connections, in /proc/net/unix."""


def tcp_listeners(pid: int) -> list[tuple[str, int]]:
    """The addresses and ports, of IPv4 and IPv6, at which a process listens."""
    found = psutil.Process(pid).net_connections("tcp")
    return [(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN]


def unix_listeners(pid: int) -> list[str]:
    """The Unix sockets at which a process listens: absolute paths, and abstract names that begin with @."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if socket := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
            inodes.add(socket[1])
    names = []
    for row in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *name = row.split(maxsplit=7)
        if inode in inodes and int(flags, 16) & LISTENS:
            names += name
    folder = os.readlink(f"/proc/{pid}/cwd")
    return [name if name.startswith("@") else str(Path(folder, name)) for name in names]
