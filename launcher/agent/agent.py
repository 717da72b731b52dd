"""The agent's life: it prepares this node, reaches etcd, takes part in the job, and closes everything."""

from __future__ import annotations

import asyncio
import os

from elastic.core.agent.core import AgentCore
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.errors import StoreUnavailable
from elastic.store.protocol import Store
from launcher.agent import registration
from launcher.agent.core_driver import EventQueue
from launcher.agent.session import AgentSession
from launcher.agent.store_connection import StoreConnector
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.local import etcd_addresses
from launcher.logs import event_log
from launcher.logs.console import Console
from launcher.logs.event_log import JsonEventLog
from launcher.logs.json_format import JsonFormatter
from launcher.logs.logger import AgentLog
from launcher.logs.writer_client import LogWriterClient
from launcher.metrics.exporter import MetricsExporter
from launcher.net import addresses
from launcher.peers.listener import PeerListener
from launcher.spot.watcher import SpotWatch
from launcher.system import frozen_imports
from launcher.system.clock import boottime
from launcher.system.limits import raise_nofile_limit
from launcher.system.signals import SignalQueue
from launcher.terminal.content import BlockContent
from launcher.workers.group import WorkerGroup


class Agent:
    """One node in one job."""

    def __init__(
        self,
        config: Config,
        node: str,
        host: str,
        agent_log: AgentLog,
        consoles: tuple[Console, Console],
        signals: SignalQueue,
        disk: LogWriterClient,
        lines: JsonFormatter | None,
    ) -> None:
        self._config = config
        self._lines = lines
        self._node = node
        self._host = host
        self._agent_log = agent_log
        self._signals = signals
        # Several nodes of one machine that have loopback addresses of their own can each hold the control port there.
        self._listening = host if addresses.only_here(host, static_hosts(config)) else ""
        self._keys = JobKeys(config.job_id, config.key_prefix)
        self._events = EventQueue(boottime)
        self._workers = WorkerGroup(config, node, host, agent_log, consoles, self._events.put_nowait, disk, lines)
        self._monitor = (
            MetricsExporter(config, agent_log, self._workers, disk) if config.metrics_at is not None else None
        )
        self._event_log = JsonEventLog(disk.appending(event_log.FILE), config.job_id, node)
        self._store: Store | None = None
        self._listener: PeerListener | None = None
        self._loop: AgentSession | None = None
        self._began_at = boottime()
        self._spot: asyncio.Task[None] | None = None

    async def run(self, connecting: StoreConnector) -> int:
        """Join, take part, leave; the exit code."""
        self._log_gpus()
        watch = SpotWatch(self._config.spot, os.environ, self._agent_log, self._events.put_nowait, self._is_joining)
        self._spot = asyncio.create_task(watch.run(), name="spot")  # From the start on, beside everything.
        await self._workers.start()
        raise_nofile_limit()
        if self._monitor is not None and self._config.metrics_at is not None:
            self._monitor.held = lambda: watch.held
            await self._monitor.open(*self._config.metrics_at)
        with frozen_imports.frozen_imports():  # Only now: the nursery stands, and grpc brings threads.
            import elastic.store.etcd  # noqa: F401

        store = self._store = self._config.store_access.open()
        await connecting.until(lambda: self._ask(store), self._agent_log, lambda: store.last_error)
        await connecting.unless_ended(watch.wait_clear())
        with registration.hold_ports(self._config, self._host, self._listening) as held:
            self._listener = await PeerListener.listen(self._listening, self._config.job_id, self._node, held.link)
            core = AgentCore(registration.initial_state(self._config, self._node, self._host, held, boottime()))
            self._loop = AgentSession(
                core,
                self._config,
                self._agent_log,
                self._signals,
                self._lines,
                self._events,
                self._workers,
                self._monitor,
                self._event_log,
                store=store,
                listener=self._listener,
                spot=self._spot,
                began_at=self._began_at,
            )
            return await self._loop.run()

    def block(self) -> BlockContent | None:
        """What stands in the live status; None before this node has looked at the job."""
        return self._loop.block() if self._loop is not None else None

    def shown_live(self) -> None:
        """Progress is shown in the live status."""
        self._workers.shown_live()

    async def close(self) -> None:
        """Kill what runs, and let go of the store."""
        if self._monitor is not None:
            await self._monitor.close()
        if self._spot is not None:
            self._spot.cancel()
        await self._workers.close()
        if self._listener is not None:
            await self._listener.close()
        if self._store is not None:
            await self._store.close()

    async def _ask(self, store: Store) -> None:
        listing = await store.list(KeyRange.key(self._keys.spec))
        if self._config.served_by and not listing.entries:
            # Otherwise a node with another list could be the first, and the one that serves would be refused.
            raise StoreUnavailable(etcd_addresses.why_waiting(self._config.served_by, self._config.job_id))

    def _log_gpus(self) -> None:
        gpus = self._config.gpu_ids[: self._config.slots]
        if gpus and (self._config.shown_gpus or "CUDA_VISIBLE_DEVICES" in os.environ):
            self._agent_log.info(f"cards of this node, in the order of the local ranks: {', '.join(gpus)}")

    def _is_joining(self) -> bool:
        """Whether this node has not joined yet."""
        return self._loop is None or not self._loop.joined
