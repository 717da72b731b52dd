"""Connects the core, this node's workers and their observers, once etcd is reached.

`launcher.agent.core_driver` drives the core. This module holds no policy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

from elastic.channel.messages import CheckpointSaved, WorkerMessage
from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.core import AgentCore
from elastic.core.model import Cause, FinalStatus
from elastic.store.protocol import Store
from elastic.store.session import READ_EVERY
from launcher import __version__
from launcher.agent.core_driver import CoreDriver, EventQueue
from launcher.agent.failure_reporter import FailureReporter
from launcher.agent.imports_advice import ImportsPublisher
from launcher.agent.inspect_server import InspectServer
from launcher.agent.local_death_proofs import DeathProver
from launcher.agent.node_snapshot import snapshot
from launcher.agent.publishers import CheckpointPublisher, CurvePublisher
from launcher.agent.recovery_reporter import RecoveryReporter
from launcher.config.config import Config
from launcher.logs import event_log
from launcher.logs.event_log import JsonEventLog
from launcher.metrics.exporter import AgentReading, MetricsExporter
from launcher.peers.listener import PeerListener
from launcher.peers.partition_watch import PartitionWatch
from launcher.peers.reachability import StartupReachability
from launcher.system.clock import boottime
from launcher.system.processes import started_at
from launcher.terminal.content import BlockContent, block_content
from launcher.wire.inspect_messages import NodeSnapshot
from launcher.workers.failure_causes import UNREACHED
from launcher.workers.group import WorkerGroup
from launcher.workers.node_output import NodeOutput
from launcher.workers.nursery_client import NurseryEvent
from launcher.workers.reports.states import TrackedProcess


class AgentSession:
    """An agent's part in the job, from the moment at which etcd is reached until the core ends the agent."""

    def __init__(
        self,
        config: Config,
        out: NodeOutput,
        events: EventQueue,
        workers: WorkerGroup,
        monitor: MetricsExporter | None,
        *,
        core: AgentCore,
        store: Store,
        listener: PeerListener,
    ) -> None:
        """Take the `listener` that accepts connections of the other nodes."""
        agent_log = out.agent_log
        node, host, keys = core.facts.me.node, core.facts.me.member.host, core.facts.keys
        self._core = core
        self._config = config
        self._agent_log = agent_log
        self._lines = out.lines
        self._events = events
        self._workers = workers
        self._monitor = monitor
        self._began_at = started_at() or boottime()
        self._event_log = JsonEventLog(out.disk.appending(event_log.FILE), config.job_id, node)
        self._death_proofs = DeathProver(config.job_id, agent_log, events.put_nowait)
        self._started: actions.StartWorkers | None = None
        self._reachability = StartupReachability(store, keys, node, agent_log)
        self._inspect_server = InspectServer(self._snapshot, workers.last_logs, workers.stacks, agent_log.warning)
        self._driver = driver = CoreDriver(
            core,
            store,
            listener,
            events,
            agent_log,
            # A parameter-server job gives a slot away as soon as its lease has ended; no restart barrier waits for it.
            read_every=READ_EVERY if config.run_mode == "collective" else 0.0,
            on_refresh_failed=monitor.collector.refresh_failed if monitor is not None else lambda _: None,
            on_look=self._inspect_server.take,
            stepped_at=workers.states.stepped_at,
        )
        self._failures = FailureReporter(core, store, agent_log, driver.begin, self._told_cause)
        self._recovery_reporter = RecoveryReporter(
            node,
            workers.talk,
            agent_log,
            self._event_log,
            driver.history,
            boottime,
            tasks=config.run_mode != "collective",
            begin=driver.begin,
            on_own=monitor.collector.recovered if monitor is not None else lambda _: None,
        )
        self._saved = CheckpointPublisher(store, keys, host, agent_log)
        self._curve = CurvePublisher(store, keys, agent_log)
        self._imports = ImportsPublisher(store, keys, agent_log)
        self._partition_watch = PartitionWatch(
            workers.talk,
            store,
            keys,
            node,
            config.partition_timeout_s,
            linked=driver.links.linked,
            tell=self._unreached,
            give_up=workers.give_up,
        )

    async def run(self, *work: Coroutine[Any, Any, None]) -> int:
        """Take part until the core ends the agent; return the exit code. An error in `work` also ends the agent."""
        versions = self._core.facts.me.member.versions
        self._agent_log.debug(f"on this node: {', '.join(f'{name} {text}' for name, text in versions.items())}")
        return await self._driver.run(
            self._perform,
            observe=self._observe,
            after=self._after_event,
            work=(
                self._workers.tend(),
                self._partition_watch.run(),
                self._saved.run(),
                self._curve.run(),
                self._imports.run(),
                *work,
            ),
            settle=self._settle,
            stop=self._stop,
        )

    @property
    def joined(self) -> bool:
        """Return whether this node has joined."""
        return self._core.facts.registration.joined_at is not None

    def block(self) -> BlockContent:
        """The content of the live status."""
        return block_content(self._core.facts, self._workers.states.seen, said=self._driver.wait_reporter.sentence)

    def reading(self) -> AgentReading:
        """Return the state of this node for the monitoring endpoint."""
        driver = self._driver
        return AgentReading(self._core.facts, driver.wait_reporter.sentence, driver.history.dropped)

    def _snapshot(self) -> NodeSnapshot:
        """Return the state of this node for the status endpoint."""
        return snapshot(
            self._core.facts,
            self._workers.states,
            self._driver.wait_reporter.sentence,
            boottime(),
            began_at=self._began_at,
            pid=os.getpid(),
            version=__version__,
            imports=self._workers.learning.words,
        )

    def _observe(self, event: agent_events.Event, wanted: Sequence[actions.Action], arrived_at: float) -> None:
        """Pass an event to the observers of the core, before its actions are performed.

        The order matters for JSON lines: they have the new generation before an observer writes one.
        """
        facts = self._core.facts
        if isinstance(event, agent_events.WorkersGone):
            self._partition_watch.end()
            self._saved.hurry()
            self._curve.hurry()
        if self._lines is not None and facts.generation is not None:
            self._lines.generation = facts.generation.g
        self._recovery_reporter.observe(facts, event, wanted, arrived_at)
        if self._monitor is not None:
            self._monitor.collector.observe(facts, event, wanted, arrived_at)
        for row in self._core.taken:
            self._agent_log.debug(row)

    def _after_event(self, event: agent_events.Event, wanted: Sequence[actions.Action]) -> None:
        """Update the observers of the state that an event and its actions have led to."""
        self._failures.after_event()
        self._event_log.observe(self._core.facts, event, wanted, self._core.taken)
        self._death_proofs.check(self._core.facts)
        if self._started is not None and (proven := self._workers.learning.proven) is not None:
            self._imports.loaded(proven, incarnation=self._started.incarnation)

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Pass a message of a worker to the observers, which do not depend on each other."""
        for observer in (
            self._note_checkpoint,
            self._recovery_reporter.on_message,
            self._curve.on_message,
            self._partition_watch.on_message,
        ):
            observer(heard, message)
        if self._monitor is not None:
            self._monitor.on_message(heard, message)

    def on_worker_event(self, event: NurseryEvent) -> None:
        """Pass an event of the fork server to the observers."""
        self._recovery_reporter.on_worker_event(event)

    async def _settle(self, limit_s: float) -> None:
        await self._recovery_reporter.close(limit_s)  # It adds to the history.
        await asyncio.gather(
            *(
                publisher.settle(limit_s)
                for publisher in (self._driver.history, self._saved, self._curve, self._imports)
            )
        )

    async def _stop(self) -> None:
        self._workers.stop(0.0, "because the agent is exiting")
        await self._inspect_server.close()

    # --- actions of the core ---------------------------------------------------------------------------------------

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.StartWorkers():
                self._started = action
                self._curve.begin(action.incarnation)
                facts, stored = self._core.facts, self._core.facts.view.saved
                saved = self._saved.for_workers(stored.value if stored is not None else None)
                self._workers.begin(action, facts.workers.run_until, saved, self._driver.links.secret)
                self._partition_watch.begin(action.generation)
                self._driver.begin(self._reachability.check_neighbours(action.generation))
            case actions.PublishClusterSpec():
                self._workers.lists.write(action.generation)
            case actions.StopWorkers():
                if not action.planned:  # To stop at an agreed step the workers need each other once more.
                    self._partition_watch.end()
                self._workers.stop(action.stop_timeout_s, action.why, planned=action.planned)
            case actions.ExtendRunDeadline():
                self._workers.run_until(action.t)
            case actions.ReportFailure():
                self._failures.judged(action.cause)
                self._agent_log.info(f"{action.note}; the job continues" if action.note else "the job continues")
            case actions.ReportVerdict(verdict=verdict, late=late):
                if verdict.status is FinalStatus.FAILED and verdict.cause is not None and not late:
                    self._failures.judged(verdict.cause)
                self._driver.report_verdict(action)

    def _unreached(self, g: int, nodes: tuple[str, ...], late: Sequence[int]) -> None:
        """Report that workers wait and these nodes are unreachable; the workers in `late` have waited too long."""
        numbers = {"limit_s": self._config.partition_timeout_s, "nodes": ", ".join(nodes)}
        exits = self._workers.watched(g, UNREACHED, dict.fromkeys(late, numbers))
        self._events.put_nowait(agent_events.PeersUnreachable(g, nodes, exits))

    def _note_checkpoint(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Record that a worker reports a checkpoint complete."""
        if isinstance(message, CheckpointSaved) and (started := self._started) is not None:
            run, g = started.generation.run, started.generation.g
            self._saved.committed(message.step, message.folder, run=run, g=g, incarnation=started.incarnation)

    def _told_cause(self, cause: Cause) -> None:
        self._workers.annotate_logs_with_cause(cause)
        self._event_log.failure(cause)
