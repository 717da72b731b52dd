"""Connects to the store: retries within --connect-timeout, and logs what it waits for."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from elastic.errors import StoreError, StoreUnavailable
from launcher.config import host_list
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.logs.logger import AgentLog
from launcher.net import addresses
from launcher.system.clock import boottime

CONNECT_PAUSE_S = 0.5
CONNECT_LINE_EVERY_S = 10.0
ATTEMPT_MIN_S = 1.0
"""Minimum time limit of an attempt, however short --connect-timeout is."""


async def resolve(config: Config) -> str:
    """Return the host name or address that the other nodes use for this node."""
    if config.host in static_hosts(config):
        return config.host  # An entry of --ips, spelled as there.
    return addresses.advertised(config.host, os.environ, config.servers, config.nic)


T = TypeVar("T")


class JoinInterrupted(Exception):
    """A signal arrived before this node joined the job."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"{number.name}: interrupted before joining the job")
        self.exit_code = 128 + number


class StoreConnector:
    """Retries until the store answers, within --connect-timeout, and logs what it waits for."""

    def __init__(self, config: Config, interrupted: asyncio.Future[signal.Signals]) -> None:
        """Start the clock of the limit. `interrupted` is the first signal."""
        self._config = config
        self._interrupted = interrupted
        self._ends_at = boottime() + config.connect_timeout_s
        self._said_at = float("-inf")

    async def until(
        self,
        call: Callable[[], Awaitable[T]],
        agent_log: AgentLog,
        last_error: Callable[[], StoreError | None] = lambda: None,
    ) -> T:
        """Retry `call` until it succeeds, and return its result.

        `last_error` returns why the current attempt has had no answer so far, if known.
        Raises `StoreUnavailable` after the limit, `JoinInterrupted` when a signal comes.
        """
        while True:
            attempt = await self._attempt(call(), max(self._ends_at - boottime(), ATTEMPT_MIN_S))
            try:
                return attempt.result()
            except asyncio.CancelledError:
                self._wait_or_raise(last_error() or StoreUnavailable("no answer"), agent_log)
            except StoreUnavailable as error:
                self._wait_or_raise(error, agent_log)
            await asyncio.wait({self._interrupted}, timeout=CONNECT_PAUSE_S)
            self._raise_if_interrupted()

    async def unless_interrupted(self, wait: Awaitable[None]) -> None:
        """Wait for an awaitable. Raises `JoinInterrupted` as soon as a signal comes."""
        (await self._attempt(wait)).result()

    async def _attempt(self, work: Awaitable[T], limit_s: float | None = None) -> asyncio.Future[T]:
        """Run `work` until it ends or the limit cancels it; return it."""
        attempt = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {attempt, self._interrupted}
        try:
            await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            attempt.cancel()  # No effect if it is done.
        await asyncio.wait({attempt})
        if attempt.cancelled():
            self._raise_if_interrupted()
        return attempt

    def _raise_if_interrupted(self) -> None:
        if self._interrupted.done():
            raise JoinInterrupted(self._interrupted.result())

    def _wait_or_raise(self, error: StoreError, agent_log: AgentLog) -> None:
        config, now = self._config, boottime()
        servers, hint = ", ".join(config.servers), "is it running, and is --elastic-server correct?"
        if config.served_by:
            servers, hint = f"{servers}, which {config.served_by} hosts", host_list.unreachable_hint(config.served_by)
        if now >= self._ends_at:
            raise StoreUnavailable(
                f"no etcd within {config.connect_timeout_s:g} s at {servers} ({error}); {hint} --connect-timeout waits "
                "longer"
            ) from error
        if now >= self._said_at + CONNECT_LINE_EVERY_S:
            self._said_at = now
            agent_log.info(f"waiting for etcd at {servers} ({error}); giving up in {max(self._ends_at - now, 0):.0f} s")
