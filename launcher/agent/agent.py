"""The agent: joins the core (`elastic.core.agent.table`) to the store, the session, the nursery, signals and people.

It reads an event, calls the core, and performs the actions in their order. There is no policy here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from elastic.channel.client import CheckpointSaved
from elastic.core.agent import events as ae
from elastic.core.agent.table import AgentCore
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.model import Cause, FinalStatus, Verdict
from elastic.errors import ElasticError, StoreUnavailable
from elastic.store import session
from elastic.store.protocol import Store
from launcher import __version__
from launcher.agent import registration
from launcher.agent.checkpoint_publisher import CheckpointPublisher
from launcher.agent.connect import StoreConnector
from launcher.agent.curve_publisher import CurvePublisher
from launcher.agent.death_proofs import DeathProver
from launcher.agent.event_queue import EventQueue
from launcher.agent.failure_reporter import FailureReporter
from launcher.agent.history_writer import HistoryWriter
from launcher.agent.inspect_server import InspectServer
from launcher.agent.recovery_reporter import RecoveryReporter
from launcher.agent.snapshot import snapshot
from launcher.agent.store_actions import CLOSING_LIMIT_S, StoreActions
from launcher.agent.wait_reporter import WaitReporter
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.local import served_etcd
from launcher.logs import event_log
from launcher.logs.console import Console
from launcher.logs.event_log import JsonEventLog
from launcher.logs.json_format import JsonFormatter
from launcher.logs.logger import AgentLog
from launcher.logs.writer_client import LogWriterClient
from launcher.metrics.exporter import MetricsExporter
from launcher.net import addresses
from launcher.peers.core_adapter import LinkAdapter
from launcher.peers.listener import PeerListener
from launcher.peers.partition_watch import PartitionWatch
from launcher.peers.reachability import StartupReachability
from launcher.spot.watcher import SpotWatch
from launcher.system import frozen_imports, limits
from launcher.system.clock import boottime
from launcher.system.limits import raise_own
from launcher.system.signals import SignalQueue
from launcher.terminal.content import BlockContent, block_content
from launcher.text import failure_report
from launcher.wire.inspect import NodeSnapshot
from launcher.workers.group import WorkerGroup
from launcher.workers.reports.messages import WorkerReport


def _first(group: BaseExceptionGroup[ElasticError]) -> ElasticError:
    """The first error of a group, however deep."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _AgentFinished(Exception):
    """The core has said `Exit`."""


class Agent:
    """One node in one job."""

    def __init__(
        self,
        config: Config,
        node: str,
        host: str,
        narrator: AgentLog,
        consoles: tuple[Console, Console],
        signals: SignalQueue,
        disk: LogWriterClient,
        lines: JsonFormatter | None,
    ) -> None:
        self._config = config
        self._lines = lines
        self._node = node
        self._host = host
        self._narrator = narrator
        self._signals = signals
        # Several nodes of one machine that have loopback addresses of their own can each hold the control port there.
        self._listening = host if addresses.only_here(host, static_hosts(config)) else ""
        self._keys = JobKeys(config.job_id, config.key_prefix)
        self._events = EventQueue(boottime)
        self._proofs = DeathProver(config.job_id, narrator, self._events.put_nowait)
        self._workers = WorkerGroup(config, node, host, narrator, consoles, self._events.put_nowait, disk, lines)
        self._monitor = (
            MetricsExporter(config, narrator, self._workers, disk) if config.metrics_at is not None else None
        )
        self._event_log = JsonEventLog(disk.appending(event_log.FILE), config.job_id, node)
        self._store: Store | None = None
        self._hello: PeerListener | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._exit_code: int | None = None
        self._started: ae.StartWorkers | None = None
        self._began_at = boottime()
        self._spot: asyncio.Task[None] | None = None

    async def run(self, connecting: StoreConnector) -> int:
        """Join, take part, leave; the exit code."""
        self._say_cards()
        watch = SpotWatch(self._config.spot, os.environ, self._narrator, self._events.put_nowait, self._joins)
        self._spot = asyncio.create_task(watch.run(), name="spot")  # From the start on, beside everything.
        await self._workers.start()
        raise_own()
        if self._monitor is not None and self._config.metrics_at is not None:
            self._monitor.held = lambda: watch.held
            await self._monitor.open(*self._config.metrics_at)
        with frozen_imports.frozen_imports():  # Only now: the nursery stands, and grpc brings threads.
            import elastic.store.etcd  # noqa: F401

        store = self._store = self._config.way.open()
        connecting.last_error = lambda: store.last_error
        await connecting.until(self._ask, store)
        await connecting.unless_ended(watch.free())
        with registration.hold_ports(self._config, self._host, self._listening) as held:
            self._hello = await PeerListener.listen(self._listening, self._config.job_id, self._node, held.link)
            self._neighbours = StartupReachability(store, self._keys, self._node, self._narrator)
            self._core = AgentCore(registration.initial_state(self._config, self._node, self._host, held, boottime()))
            self._linking = LinkAdapter(
                self._hello, self._config.job_id, self._core.facts, self._events.put_nowait, self._narrator
            )
            self._say_versions()
            self._waiting = WaitReporter(self._core, store, self._keys, self._narrator, boottime)
            self._window = InspectServer(
                self._snapshot, self._workers.last_logs, self._workers.stacks, self._narrator.warn
            )
            self._linking.show(self._window.take)
            self._failures = FailureReporter(
                self._core, store, self._keys, self._narrator, self._tell_early, self._told_cause
            )
            self._history = HistoryWriter(store, self._keys, self._node, self._narrator)
            self._errands = StoreActions(
                store,
                self._core.facts,
                self._narrator,
                self._history,
                put=self._events.put_nowait,
                learn=self._linking.learn,
                begin=lambda coroutine: self._group.create_task(coroutine),
                # A seat is given away as soon as the right to it has ended: no gate waits for anybody's word.
                read_every=session.READ_EVERY if self._config.run_mode == "collective" else 0.0,
                on_session=self._monitor.session if self._monitor is not None else lambda _: None,
            )
            self._timeline = RecoveryReporter(
                self._node,
                self._workers.talk,
                self._narrator,
                self._event_log,
                self._history,
                boottime,
                seats=self._config.run_mode != "collective",
                begin=lambda coroutine: self._group.create_task(coroutine),
            )
            self._workers.watch = self._timeline.worker
            if self._monitor is not None:
                history, waiting = self._history, self._waiting
                self._monitor.follow(self._core.facts, lambda: history.dropped, lambda: waiting.sentence)
                self._timeline.on_own = self._monitor.recovered
            self._saved = CheckpointPublisher(store, self._keys, self._host, self._narrator)
            self._workers.talk.on_saved = self._committed
            self._course = CurvePublisher(store, self._keys, self._workers.talk, self._narrator)
            self._splits = PartitionWatch(
                self._workers.talk,
                store,
                self._keys,
                self._node,
                self._config.reach_timeout_s,
                linked=self._linking.linked,
                tell=self._unreached,
                unformed=self._workers.unformed,
            )
            try:
                async with asyncio.TaskGroup() as self._group:
                    await self._live()
            except* _AgentFinished:
                pass
            except* ElasticError as failed:
                raise _first(failed) from failed
            except* (OSError, RuntimeError) as failed:
                if (lack := limits.shortage_line(failed)) is None:
                    raise
                raise lack from failed
            finally:
                self._linking.close()
                self._workers.stop(0.0, "because the agent ends")
                await self._window.close()
                await self._errands.give_back_lease()
        assert self._exit_code is not None
        return self._exit_code

    def block(self) -> BlockContent | None:
        """What stands in the live status; None before this node has looked at the job."""
        core: AgentCore | None = getattr(self, "_core", None)
        return block_content(core.facts, self._workers.pace, said=self._waiting.said) if core is not None else None

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
        if self._hello is not None:
            await self._hello.close()
        if self._store is not None:
            await self._store.close()

    async def _ask(self, store: Store) -> str:
        listing = await store.list(KeyRange.key(self._keys.spec))
        if self._config.served_by and not listing.entries:
            # Otherwise a node with another list could be the first, and the one that serves would be refused.
            raise StoreUnavailable(served_etcd.why_waiting(self._config.served_by, self._config.job_id))
        return ""

    def _snapshot(self) -> NodeSnapshot:
        """How this node stands, for an operator who asks."""
        return snapshot(
            self._core.facts,
            self._workers.states,
            self._waiting.sentence,
            boottime(),
            began_at=self._began_at,
            pid=os.getpid(),
            version=__version__,
        )

    def _say_cards(self) -> None:
        cards = self._config.cards[: self._config.slots]
        if cards and (self._config.shown_cards or "CUDA_VISIBLE_DEVICES" in os.environ):
            self._narrator.say(f"cards of this node, in the order of the local ranks: {', '.join(cards)}")

    def _say_versions(self) -> None:
        versions = self._core.facts.me.member.versions
        self._narrator.detail(f"on this node: {', '.join(f'{name} {text}' for name, text in versions.items())}")

    async def _live(self) -> None:
        """Read events until the core ends the agent."""
        for coroutine in (
            self._errands.run(),
            self._workers.tend(),
            self._waiting.run(),
            self._splits.run(),
            self._hear_signal(),
            self._hear_spot(),
            self._history.run(),
            self._saved.run(),
            self._course.run(),
        ):
            self._group.create_task(coroutine)
        self._plan_wake()
        while True:
            event = await self._events.get()
            if isinstance(event, ae.WorkersGone):
                self._splits.end()
                self._saved.hurry()
                self._course.ended()
            actions = self._core.handle(event, boottime())
            if self._lines is not None and (generation := self._core.facts.generation) is not None:
                self._lines.generation = generation.g
            self._timeline.observe(self._core.facts, event, actions, self._events.arrived_at)
            if self._monitor is not None:
                self._monitor.observe(self._core.facts, event, actions, self._events.arrived_at)
            for row in self._core.taken:
                self._narrator.detail(row)
            for action in actions:
                self._perform(action)
            self._waiting.after_event()
            self._failures.after_event()
            self._event_log.observe(self._core.facts, event, actions, self._core.taken)
            if self._exit_code is not None:
                await self._timeline.close(CLOSING_LIMIT_S)
                await asyncio.gather(
                    *(publisher.settle(CLOSING_LIMIT_S) for publisher in (self._history, self._saved, self._course))
                )
                raise _AgentFinished
            self._plan_wake()
            self._proofs.look(self._core.facts)

    async def _hear_signal(self) -> None:
        number = await asyncio.shield(self._signals.first)
        self._narrator.say(f"{number.name}: leaving in order; once more ends at once")
        self._events.put_nowait(ae.DrainRequested(128 + number, number.name))

    def _joins(self) -> bool:
        """Whether this node has not joined yet."""
        core: AgentCore | None = getattr(self, "_core", None)
        return core is None or core.facts.joined_at is None

    async def _hear_spot(self) -> None:
        """A watch that dies is heard of."""
        assert self._spot is not None
        await self._spot

    def _plan_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        at = self._core.wake_at
        if at is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(max(at - boottime(), 0.0), self._events.put_nowait, ae.Tick())

    # --- what the core asks for -----------------------------------------------------------------------------------

    def _perform(self, action: ae.Action) -> None:
        match action:
            case (
                ae.SendTransaction()
                | ae.MirrorKeys()
                | ae.Relist()
                | ae.FindPredecessor()
                | ae.LookUpNode()
                | ae.OpenSession()
                | ae.CloseSession()
                | ae.RevokeLease()
            ):
                self._errands.perform(action)
            case ae.WatchLinks() | ae.AskLinks() | ae.AskVouch() | ae.CloseInbound():
                self._linking.perform(action)
            case ae.StartWorkers():
                self._started = action
                self._course.begin(action.incarnation)
                self._workers.begin(action, self._core.facts.run_until, self._told_saved())
                self._splits.begin(action.generation)
                self._group.create_task(self._neighbours.look(action.generation))
            case ae.PublishClusterSpec():
                self._workers.lists.write(action.generation)
            case ae.StopWorkers():
                if not action.planned:  # To leave in order the workers need each other once more.
                    self._splits.end()
                self._workers.stop(action.grace_s, action.why, planned=action.planned)
            case ae.ExtendRunDeadline():
                self._workers.run_until(action.t)
            case ae.LogLine():
                narrator = self._narrator
                (narrator.warn if action.warn else narrator.detail if action.detail else narrator.say)(action.text)
            case ae.ReportFailure():
                self._report_failure(action.cause, action.note)
            case ae.ReportVerdict():
                self._report_verdict(action.verdict, late=action.late)
            case ae.ExitAgent():
                self._exit_code = action.code

    def _unreached(self, g: int, nodes: tuple[str, ...], late: Sequence[int]) -> None:
        """Workers wait, and these nodes are not reached from here; those in `late` have waited for too long."""
        self._events.put_nowait(ae.PeersUnreachable(g, nodes, self._workers.unreached(g, late, nodes) if late else ()))

    def _committed(self, heard: WorkerReport, said: CheckpointSaved) -> None:
        """A worker says that a checkpoint is complete."""
        if (started := self._started) is not None:
            run, g = started.generation.run, started.generation.g
            self._saved.committed(said.step, said.folder, run=run, g=g, incarnation=started.incarnation)

    def _told_saved(self) -> str:
        """The job's newest committed checkpoint, for the workers of a generation."""
        stored = self._core.facts.view.saved
        return self._saved.told(stored.value if stored is not None else None)

    # --- what people read -----------------------------------------------------------------------------------------

    def _report_failure(self, cause: Cause, note: str) -> None:
        self._failures.judged(cause)
        self._narrator.say(f"{note}; the job goes on" if note else "the job goes on")

    def _tell_early(self, g: int) -> None:
        self._group.create_task(self._failures.tell_early(g))

    def _told_cause(self, cause: Cause) -> None:
        self._workers.name_first_cause(cause)
        self._event_log.failure(cause)

    def _report_verdict(self, verdict: Verdict, *, late: bool) -> None:
        if late:
            self._narrator.report(failure_report.ended_lines(verdict, self._config.job_id, time.time()))
            return
        if verdict.status is FinalStatus.COMPLETED:
            self._narrator.say(f"the job has completed: {verdict.reason}")
            return
        if verdict.status is FinalStatus.STOPPED:
            self._narrator.warn(f"the job was stopped: {verdict.reason}")
            return
        if verdict.cause is not None:
            self._failures.judged(verdict.cause)
        self._narrator.warn(f"the job has failed: {verdict.reason}")
