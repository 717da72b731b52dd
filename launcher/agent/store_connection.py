"""The way to the store: tried until it is there, within --connect_timeout, and told to people."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from elastic.errors import StoreError, StoreUnavailable
from launcher.config import host_list
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.logs.logger import AgentLog
from launcher.net import addresses
from launcher.system.clock import boottime
from launcher.system.signals import SignalQueue

CONNECT_PAUSE_S = 0.5
CONNECT_LINE_EVERY_S = 10.0
ATTEMPT_MIN_S = 1.0
"""An attempt has at least so long, however short --connect_timeout is."""

T = TypeVar("T")


async def resolve(config: Config) -> str:
    """The host under which the other nodes know this one."""
    if config.host in static_hosts(config):
        return config.host  # It was found in the list, as it is written there.
    return addresses.advertised(config.host, os.environ, config.servers, config.nic)


class JoinInterrupted(Exception):
    """A signal came before the job was joined."""

    def __init__(self, signals: SignalQueue) -> None:
        super().__init__(f"{signals.first.result().name}: ended before it had joined")
        self.exit_code = 128 + signals.first.result()


class StoreConnector:
    """Tries until the store is there, within --connect_timeout, and says what it waits for."""

    def __init__(self, config: Config, signals: SignalQueue, agent_log: AgentLog) -> None:
        self._config = config
        self._signals = signals
        self.agent_log = agent_log
        self._ends_at = boottime() + config.connect_timeout_s
        self._said_at = float("-inf")
        self.last_error: Callable[[], StoreError | None] = lambda: None
        """Why the attempt that is under way has had no answer so far, if that is known."""

    async def until(self, call: Callable[[T], Awaitable[str]], argument: T) -> str:
        """The first answer of `call(argument)`.

        Raises `StoreUnavailable` after the limit, `JoinInterrupted` when a signal comes.
        """
        while True:
            attempt: asyncio.Future[str] = asyncio.ensure_future(call(argument))
            waited: set[asyncio.Future[Any]] = {attempt, self._signals.first}
            limit_s = max(self._ends_at - boottime(), ATTEMPT_MIN_S)
            await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.done():
                attempt.cancel()
                await asyncio.wait({attempt})
                if self._signals.first.done():
                    raise JoinInterrupted(self._signals)
            try:
                return attempt.result()
            except asyncio.CancelledError:
                self._wait_or_raise(self.last_error() or StoreUnavailable("no answer"))
            except StoreUnavailable as error:
                self._wait_or_raise(error)
            await asyncio.wait({self._signals.first}, timeout=CONNECT_PAUSE_S)
            if self._signals.first.done():
                raise JoinInterrupted(self._signals)

    async def unless_ended(self, wait: Coroutine[Any, Any, None]) -> None:
        """Wait for that. Raises `JoinInterrupted` as soon as a signal comes."""
        waiting = asyncio.ensure_future(wait)
        either: set[asyncio.Future[Any]] = {waiting, self._signals.first}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait({waiting})
            raise JoinInterrupted(self._signals)
        waiting.result()

    def _wait_or_raise(self, error: StoreError) -> None:
        config, now = self._config, boottime()
        servers, hint = ", ".join(config.servers), "is it running, and is --elastic_server right?"
        if config.served_by:
            servers, hint = f"{servers}, which {config.served_by} serves", host_list.unreachable_hint(config.served_by)
        if now >= self._ends_at:
            raise StoreUnavailable(
                f"no etcd within {config.connect_timeout_s:g} s at {servers} ({error}); {hint} --connect_timeout waits "
                "longer"
            ) from error
        if now >= self._said_at + CONNECT_LINE_EVERY_S:
            self._said_at = now
            self.agent_log.info(
                f"waiting for etcd at {servers} ({error}); giving up in {max(self._ends_at - now, 0):.0f} s"
            )
