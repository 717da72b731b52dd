"""The agent's life: it prepares this node, reaches etcd, takes part in the job, and closes everything."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from elastic.channel.messages import WorkerMessage
from elastic.core.agent.events import DrainRequested
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.errors import StoreUnavailable
from elastic.store.protocol import Store
from launcher.agent import imports_advice, registration
from launcher.agent.core_driver import EventQueue
from launcher.agent.session import AgentSession
from launcher.agent.store_connection import StoreConnector
from launcher.config.config import Config
from launcher.local import etcd_addresses
from launcher.metrics.exporter import AgentReading, MetricsExporter
from launcher.spot.watcher import SpotWatch
from launcher.system import frozen_imports
from launcher.system.clock import boottime
from launcher.system.limits import raise_nofile_limit
from launcher.system.signals import SignalQueue
from launcher.terminal.content import BlockContent
from launcher.workers.group import WorkerGroup
from launcher.workers.node_output import NodeOutput
from launcher.workers.nursery_client import NurseryEvent
from launcher.workers.reports.states import TrackedProcess


class Agent:
    """One node in one job."""

    def __init__(self, config: Config, node: str, host: str, out: NodeOutput, signals: SignalQueue) -> None:
        """`node` is the ID of this node, `host` its address. Call this in the event loop of `run`."""
        self._config = config
        self._node = node
        self._host = host
        self._out = out
        self._signals = signals
        self._events = EventQueue(boottime)
        put = self._events.put_nowait
        self._spot = SpotWatch(config.spot, os.environ, out.agent_log, put, self._is_joining)
        self._workers = WorkerGroup(
            config, node, host, out, put, on_message=self._on_worker_message, on_event=self._on_worker_event
        )
        self._monitor = (
            MetricsExporter(config, out, self._workers, self._reading) if config.metrics_at is not None else None
        )
        self._session: AgentSession | None = None
        """None until etcd is reached."""

    async def run(self, connecting: StoreConnector) -> int:
        """Join the job, take part until this node's part ends, and close everything; return the exit code."""
        config, agent_log = self._config, self._out.agent_log
        async with AsyncExitStack() as closing:
            spot = asyncio.create_task(self._spot.run(), name="spot")  # Preemption notices also count before the join.
            closing.callback(spot.cancel)
            closing.push_async_callback(self._workers.close)
            await self._workers.start()
            raise_nofile_limit()
            if self._monitor is not None and config.metrics_at is not None:
                closing.push_async_callback(self._monitor.close)
                self._monitor.open(*config.metrics_at)
            with frozen_imports.frozen_imports():  # Only now: grpc starts threads, and the fork server has forked.
                import elastic.store.etcd  # noqa: F401

            store = config.store_access.open()
            closing.push_async_callback(store.close)
            await connecting.until(lambda: self._ask(store), agent_log, lambda: store.last_error)
            advice = await imports_advice.read_advice(store, JobKeys(config.job_id, config.key_prefix), agent_log)
            self._workers.learning.advised(advice)
            await connecting.unless_interrupted(self._spot.wait_clear())
            core, listener = await registration.open_node(config, self._node, self._host, closing)
            self._session = AgentSession(
                config, self._out, self._events, self._workers, self._monitor, core=core, store=store, listener=listener
            )
            return await self._session.run(self._drain_at_signal(), _until_ended(spot))

    def block(self) -> BlockContent | None:
        """Return the content of the live status; None before etcd is reached."""
        return self._session.block() if self._session is not None else None

    # --- events and queries of others, before and after etcd is reached --------------------------------------------

    def _on_worker_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        if self._session is not None:
            self._session.on_message(heard, message)

    def _on_worker_event(self, event: NurseryEvent) -> None:
        if self._session is not None:
            self._session.on_worker_event(event)

    def _reading(self) -> AgentReading:
        return self._session.reading() if self._session is not None else AgentReading(None, self._spot.held, 0)

    def _is_joining(self) -> bool:
        """Return whether this node has yet to join the job."""
        return self._session is None or not self._session.joined

    async def _drain_at_signal(self) -> None:
        number = await asyncio.shield(self._signals.first)
        self._out.agent_log.info(f"{number.name}: leaving gracefully; a second signal ends the node immediately")
        self._events.put_nowait(DrainRequested(128 + number, number.name))

    async def _ask(self, store: Store) -> None:
        keys = JobKeys(self._config.job_id, self._config.key_prefix)
        listing = await store.list(KeyRange.key(keys.spec))
        if self._config.served_by and not listing.entries:
            # Otherwise a node with another list could write the spec, and the job would reject the host of its etcd.
            raise StoreUnavailable(etcd_addresses.why_waiting(self._config.served_by, self._config.job_id))


async def _until_ended(task: asyncio.Task[None]) -> None:
    """Wait for this task: if it fails, so does the caller."""
    await task
