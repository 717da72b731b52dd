"""Waits for the exit of a child process by its pidfd, without a thread and without polling."""

from __future__ import annotations

import asyncio
import os
import select

from launcher.system.descriptors import closing, ready


def reap_within(pid: int, limit_s: float) -> None:
    """Wait at most `limit_s` seconds for the exit of a child, and reap it if it exits."""
    with closing(os.pidfd_open(pid)) as pidfd:
        if ready(pidfd, select.POLLIN, limit_s):
            os.waitpid(pid, 0)


async def wait_for_exit(pid: int) -> None:
    """Wait for the exit of a child; the caller reaps it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    with closing(os.pidfd_open(pid)) as pidfd:
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
