"""Joins the core (`elastic.core.agent.core`) to the store, the session, the nursery, signals and people.

It reads an event, calls the core, and performs the actions in their order. There is no policy here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from elastic.channel.messages import CheckpointSaved
from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.core import AgentCore
from elastic.core.model import Cause, FinalStatus, Verdict
from elastic.errors import ElasticError
from elastic.store import session
from elastic.store.protocol import Store
from launcher import __version__
from launcher.agent.checkpoint_publisher import CheckpointPublisher
from launcher.agent.curve_publisher import CurvePublisher
from launcher.agent.event_queue import EventQueue
from launcher.agent.failure_reporter import FailureReporter
from launcher.agent.history_writer import HistoryWriter
from launcher.agent.inspect_server import InspectServer
from launcher.agent.local_death_proofs import DeathProver
from launcher.agent.node_snapshot import snapshot
from launcher.agent.recovery_reporter import RecoveryReporter
from launcher.agent.store_actions import CLOSING_LIMIT_S, StoreActions
from launcher.agent.wait_reporter import WaitReporter
from launcher.agent.wait_teller import WaitTeller
from launcher.config.config import Config
from launcher.logs.event_log import JsonEventLog
from launcher.logs.json_format import JsonFormatter
from launcher.logs.logger import AgentLog
from launcher.metrics.exporter import MetricsExporter
from launcher.peers.core_adapter import LinkAdapter
from launcher.peers.listener import PeerListener
from launcher.peers.partition_watch import PartitionWatch
from launcher.peers.reachability import StartupReachability
from launcher.system import limits
from launcher.system.clock import boottime
from launcher.system.signals import SignalQueue
from launcher.terminal.content import BlockContent, block_content
from launcher.text import failure_report
from launcher.wire.inspect_messages import NodeSnapshot
from launcher.workers.group import WorkerGroup
from launcher.workers.reports.worker_channel import WorkerReport


def _first(group: BaseExceptionGroup[ElasticError]) -> ElasticError:
    """The first error of a group, however deep."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _AgentFinished(Exception):
    """The core has said `ExitAgent`."""


class AgentSession:
    """What takes part in the job once etcd is reached, until the core ends the agent."""

    def __init__(
        self,
        core: AgentCore,
        config: Config,
        agent_log: AgentLog,
        signals: SignalQueue,
        lines: JsonFormatter | None,
        events: EventQueue,
        workers: WorkerGroup,
        monitor: MetricsExporter | None,
        log: JsonEventLog,
        *,
        store: Store,
        hello: PeerListener,
        spot: asyncio.Task[None],
        began_at: float,
    ) -> None:
        """`hello` listens to the other nodes, `spot` watches for the end of this machine; `log` is events.jsonl."""
        node, host, keys = core.facts.me.node, core.facts.me.member.host, core.facts.keys
        self._core = core
        self._config = config
        self._agent_log = agent_log
        self._signals = signals
        self._lines = lines
        self._events = events
        self._workers = workers
        self._monitor = monitor
        self._event_log = log
        self._spot = spot
        self._began_at = began_at
        self._death_proofs = DeathProver(config.job_id, agent_log, events.put_nowait)
        self._wake: asyncio.TimerHandle | None = None
        self._exit_code: int | None = None
        self._started: actions.StartWorkers | None = None
        self._reachability = StartupReachability(store, keys, node, agent_log)
        self._links = LinkAdapter(hello, config.job_id, core.facts, events.put_nowait, agent_log)
        self._say_versions()
        self._wait_reporter = WaitReporter(core, store, keys, agent_log, boottime, self._links.heard_wait)
        self._links.on_heard_wait(self._wait_reporter.on_heard)
        self._wait_teller = WaitTeller(core.facts, self._links.tell_wait, boottime)
        self._inspect_server = InspectServer(self._snapshot, workers.last_logs, workers.stacks, agent_log.warning)
        self._links.show(self._inspect_server.take)
        self._failures = FailureReporter(core, store, keys, agent_log, self._tell_early, self._told_cause)
        self._history = HistoryWriter(store, keys, node, agent_log)
        self._store_actions = StoreActions(
            store,
            core.facts,
            agent_log,
            self._history,
            put=events.put_nowait,
            learn=self._links.learn,
            begin=lambda coroutine: self._group.create_task(coroutine),
            # A seat is given away as soon as the right to it has ended: no gate waits for anybody's word.
            read_every=session.READ_EVERY if config.run_mode == "collective" else 0.0,
            on_session=monitor.session if monitor is not None else lambda _: None,
        )
        self._recovery_reporter = RecoveryReporter(
            node,
            workers.talk,
            agent_log,
            log,
            self._history,
            boottime,
            tasks=config.run_mode != "collective",
            begin=lambda coroutine: self._group.create_task(coroutine),
        )
        workers.watch = self._recovery_reporter.worker
        if monitor is not None:
            history, waiting = self._history, self._wait_reporter
            monitor.follow(core.facts, lambda: history.dropped, lambda: waiting.sentence)
            self._recovery_reporter.on_own = monitor.recovered
        self._saved = CheckpointPublisher(store, keys, host, agent_log)
        workers.talk.on_saved = self._committed
        self._curve = CurvePublisher(store, keys, workers.talk, agent_log)
        self._partition_watch = PartitionWatch(
            workers.talk,
            store,
            keys,
            node,
            config.reach_timeout_s,
            linked=self._links.linked,
            tell=self._unreached,
            unformed=workers.unformed,
        )

    async def run(self) -> int:
        """Take part until the core ends the agent; the exit code."""
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
            self._wait_teller.close()
            self._links.close()
            self._workers.stop(0.0, "because the agent ends")
            await self._inspect_server.close()
            await self._store_actions.give_back_lease()
        assert self._exit_code is not None
        return self._exit_code

    @property
    def joined(self) -> bool:
        """Whether this node has joined."""
        return self._core.facts.registration.joined_at is not None

    def block(self) -> BlockContent:
        """The content of the live status."""
        return block_content(self._core.facts, self._workers.pace, said=self._wait_reporter.sentence)

    def _snapshot(self) -> NodeSnapshot:
        """How this node stands, for an operator who asks."""
        return snapshot(
            self._core.facts,
            self._workers.states,
            self._wait_reporter.sentence,
            boottime(),
            began_at=self._began_at,
            pid=os.getpid(),
            version=__version__,
        )

    def _say_versions(self) -> None:
        versions = self._core.facts.me.member.versions
        self._agent_log.debug(f"on this node: {', '.join(f'{name} {text}' for name, text in versions.items())}")

    async def _live(self) -> None:
        """Read events until the core ends the agent."""
        for coroutine in (
            self._store_actions.run(),
            self._workers.tend(),
            self._wait_reporter.run(),
            self._partition_watch.run(),
            self._hear_signal(),
            self._hear_spot(),
            self._history.run(),
            self._saved.run(),
            self._curve.run(),
        ):
            self._group.create_task(coroutine)
        self._plan_wake()
        while True:
            event = await self._events.get()
            if isinstance(event, agent_events.WorkersGone):
                self._partition_watch.end()
                self._saved.hurry()
                self._curve.ended()
            next_actions = self._core.handle(event, boottime())
            if self._lines is not None and (generation := self._core.facts.generation) is not None:
                self._lines.generation = generation.g
            self._recovery_reporter.observe(self._core.facts, event, next_actions, self._events.arrived_at)
            if self._monitor is not None:
                self._monitor.observe(self._core.facts, event, next_actions, self._events.arrived_at)
            for row in self._core.taken:
                self._agent_log.debug(row)
            for action in next_actions:
                self._perform(action)
            self._wait_reporter.after_event()
            self._wait_teller.after_event()
            self._failures.after_event()
            self._event_log.observe(self._core.facts, event, next_actions, self._core.taken)
            if self._exit_code is not None:
                await self._recovery_reporter.close(CLOSING_LIMIT_S)
                await asyncio.gather(
                    *(publisher.settle(CLOSING_LIMIT_S) for publisher in (self._history, self._saved, self._curve))
                )
                raise _AgentFinished
            self._plan_wake()
            self._death_proofs.check(self._core.facts)

    async def _hear_signal(self) -> None:
        number = await asyncio.shield(self._signals.first)
        self._agent_log.info(f"{number.name}: leaving in order; once more ends at once")
        self._events.put_nowait(agent_events.DrainRequested(128 + number, number.name))

    async def _hear_spot(self) -> None:
        """A watch that dies is heard of."""
        await self._spot

    def _plan_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        at = self._core.wake_at
        if at is not None:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(max(at - boottime(), 0.0), self._events.put_nowait, agent_events.Tick())

    # --- what the core asks for -----------------------------------------------------------------------------------

    def _perform(self, action: actions.Action) -> None:
        match action:
            case (
                actions.SendTransaction()
                | actions.MirrorKeys()
                | actions.Relist()
                | actions.FindMember()
                | actions.LookUpNode()
                | actions.OpenSession()
                | actions.CloseSession()
                | actions.RevokeLease()
            ):
                self._store_actions.perform(action)
            case actions.WatchLinks() | actions.DoubtLinks() | actions.AskVouch() | actions.CloseInbound():
                self._links.perform(action)
            case actions.StartWorkers():
                self._started = action
                self._curve.begin(action.incarnation)
                self._workers.begin(action, self._core.facts.workers.run_until, self._told_saved())
                self._partition_watch.begin(action.generation)
                self._group.create_task(self._reachability.check_neighbours(action.generation))
            case actions.PublishClusterSpec():
                self._workers.lists.write(action.generation)
            case actions.StopWorkers():
                if not action.planned:  # To leave in order the workers need each other once more.
                    self._partition_watch.end()
                self._workers.stop(action.grace_s, action.why, planned=action.planned)
            case actions.ExtendRunDeadline():
                self._workers.run_until(action.t)
            case actions.LogLine():
                agent_log = self._agent_log
                (agent_log.warning if action.warn else agent_log.debug if action.detail else agent_log.info)(
                    action.text
                )
            case actions.ReportFailure():
                self._report_failure(action.cause, action.note)
            case actions.ReportVerdict():
                self._report_verdict(action.verdict, late=action.late)
            case actions.ExitAgent():
                self._exit_code = action.code

    def _unreached(self, g: int, nodes: tuple[str, ...], late: Sequence[int]) -> None:
        """Workers wait, and these nodes are not reached from here; those in `late` have waited for too long."""
        self._events.put_nowait(
            agent_events.PeersUnreachable(g, nodes, self._workers.unreached(g, late, nodes) if late else ())
        )

    def _committed(self, heard: WorkerReport, said: CheckpointSaved) -> None:
        """A worker says that a checkpoint is complete."""
        if (started := self._started) is not None:
            run, g = started.generation.run, started.generation.g
            self._saved.committed(said.step, said.folder, run=run, g=g, incarnation=started.incarnation)

    def _told_saved(self) -> str:
        """The job's newest committed checkpoint, for the workers of a generation."""
        stored = self._core.facts.view.saved
        return self._saved.for_workers(stored.value if stored is not None else None)

    # --- what people read -----------------------------------------------------------------------------------------

    def _report_failure(self, cause: Cause, note: str) -> None:
        self._failures.judged(cause)
        self._agent_log.info(f"{note}; the job goes on" if note else "the job goes on")

    def _tell_early(self, g: int) -> None:
        self._group.create_task(self._failures.tell_early(g))

    def _told_cause(self, cause: Cause) -> None:
        self._workers.annotate_logs_with_cause(cause)
        self._event_log.failure(cause)

    def _report_verdict(self, verdict: Verdict, *, late: bool) -> None:
        if late:
            self._agent_log.report(failure_report.ended_lines(verdict, self._config.job_id, time.time()))
            return
        if verdict.status is FinalStatus.COMPLETED:
            self._agent_log.info(f"the job has completed: {verdict.reason}")
            return
        if verdict.status is FinalStatus.STOPPED:
            self._agent_log.warning(f"the job was stopped: {verdict.reason}")
            return
        if verdict.cause is not None:
            self._failures.judged(verdict.cause)
        self._agent_log.warning(f"the job has failed: {verdict.reason}")
