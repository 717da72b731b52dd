"""Waits for the exit of a child process by its pidfd: without a thread, without looking again and again."""

from __future__ import annotations

import asyncio
import os
import select

from launcher.system.descriptors import ready


def reap_within(pid: int, limit_s: float) -> None:
    """Wait for the exit of a child for so long, and reap it if it comes."""
    pidfd = os.pidfd_open(pid)
    exited = ready(pidfd, select.POLLIN, limit_s)
    os.close(pidfd)
    if exited:
        os.waitpid(pid, 0)


async def wait_for_exit(pid: int) -> None:
    """Wait for the exit of a child; the caller reaps it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(pid)
    try:
        loop.add_reader(pidfd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
