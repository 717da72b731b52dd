"""A fork server that another one has forked, until it takes the node over: it loads what the script has imported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable

from launcher.nursery import protocol
from launcher.nursery.fd_channel import ChannelClosed, FdChannel

LOAD_LIMIT_S = 180.0
"""Seconds that a successor may take to load. It needs about ten, and sleeps for most of them."""


class NurserySuccessor:
    """One successor, from the request for it to its hand-over or its end."""

    def __init__(
        self, on_ready: Callable[[protocol.NurseryReady], None], on_end: Callable[[protocol.ModuleUnfit], None]
    ) -> None:
        """`on_end` receives the module that it must not load, and why; the name is "" if it is not known."""
        self._on_ready, self._on_end = on_ready, on_end
        self._loop = asyncio.get_running_loop()
        ours, self._theirs = socket.socketpair()
        self.channel = FdChannel(ours)
        self.pidfd = -1
        self.ready: protocol.NurseryReady | None = None
        self._module = ""
        """The module that it loads now."""
        self._loop.add_reader(self.channel, self._read)
        self._limit = self._loop.call_later(LOAD_LIMIT_S, self._ended, f"takes longer than {LOAD_LIMIT_S:g} s")

    def socket_for_it(self) -> int:
        """Return its end of the channel, to travel with the request; the caller owns it."""
        return self._theirs.detach()

    def release(self) -> None:
        """Stop reading: the client has its channel now."""
        self._limit.cancel()
        self._loop.remove_reader(self.channel)

    def kill(self) -> None:
        """End it silently."""
        self.release()
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            os.close(self.pidfd)
        self.channel.close()

    def _ended(self, why: str) -> None:
        self.kill()
        self._on_end(protocol.ModuleUnfit(self._module, why))

    def _read(self) -> None:
        try:
            reports = [protocol.decode(line, protocol.REPORTS) for line in self.channel.take()]
        except (ChannelClosed, protocol.WireError):
            self._ended("ends the process that imports it")
            return
        for report in reports:
            match report:
                case protocol.NurseryUp():
                    self.pidfd = self.channel.fds.popleft()
                case protocol.ModuleBegins(name):
                    self._module = name
                case protocol.ModuleUnfit():
                    self.kill()
                    self._on_end(report)
                    return
                case protocol.NurseryReady():
                    self._limit.cancel()
                    self._module, self.ready = "", report
                    self._on_ready(report)
