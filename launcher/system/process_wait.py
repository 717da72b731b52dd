"""Wait for the end of a process by its pidfd: no thread, no polling, no signal handler."""

from __future__ import annotations

import asyncio
import os


async def wait_for_exit(pid: int) -> None:
    """Return when the process has ended. It must be a child that was not reaped, and is not reaped here."""
    loop, ended, pidfd = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(pid)
    try:
        loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
