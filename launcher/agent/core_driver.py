"""Drives a core (`elastic.core.agent.core`): reads an event, calls the core, and performs its actions in order.

Both the agent of `elastic-launch` and a node of torchrun have a driver. It owns what both need: the store actions, the
links, the history, and the reports about what a node waits for. It holds no policy.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from elastic.core.agent import actions
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import Event, Tick
from elastic.core.model import FinalStatus
from elastic.errors import ElasticError, StoreError
from elastic.store.protocol import Store
from elastic.store.session import READ_EVERY
from launcher.agent.history_writer import HistoryWriter
from launcher.agent.store_actions import CLOSING_LIMIT_S, StoreActions
from launcher.agent.wait_reporter import WaitReporter
from launcher.agent.wait_teller import WaitTeller
from launcher.logs.logger import AgentLog
from launcher.peers.core_adapter import LinkAdapter
from launcher.peers.listener import PeerListener
from launcher.peers.reachability import find_listener
from launcher.peers.silence_detector import NEVER
from launcher.system import limits
from launcher.system.clock import boottime
from launcher.text import failure_report


class EventQueue:
    """The events of one core, each with the time on `clock` at which it was enqueued. It has no limit."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: asyncio.Queue[tuple[Event, float]] = asyncio.Queue()

    def put_nowait(self, event: Event) -> None:
        """Enqueue an event with the current time."""
        self._events.put_nowait((event, self._clock()))

    async def get(self) -> tuple[Event, float]:
        """Wait for the next event; return it with the time at which it was enqueued."""
        return await self._events.get()


class _CoreFinished(Exception):
    """The core requested `ExitAgent`."""


class CoreDriver:
    """Runs one core, from the moment at which etcd is reached until the core ends its node."""

    def __init__(
        self,
        core: AgentCore,
        store: Store,
        listener: PeerListener,
        events: EventQueue,
        agent_log: AgentLog,
        *,
        read_every: float = READ_EVERY,
        on_refresh_failed: Callable[[StoreError], None] = lambda _: None,
        on_look: Callable[[socket.socket], None] | None = None,
        stepped_at: Callable[[], float] = lambda: NEVER,
    ) -> None:
        """`read_every` and `on_refresh_failed` as in `StoreActions`, `on_look` and `stepped_at` as in `LinkAdapter`."""
        facts, put = core.facts, events.put_nowait
        self.core = core
        self._events = events
        self._agent_log = agent_log
        self._tasks = asyncio.TaskGroup()
        self._wake: asyncio.TimerHandle | None = None
        self.links = LinkAdapter(
            listener,
            facts.keys.job_id,
            facts,
            put,
            agent_log,
            find=partial(find_listener, store, facts.keys),
            stepped_at=stepped_at,
            on_heard_wait=lambda: self.wait_reporter.on_heard(),
            on_look=on_look,
        )
        self.history = HistoryWriter(store, facts.keys, facts.me.node, agent_log)
        self.store_actions = StoreActions(
            store,
            facts,
            agent_log,
            self.history,
            put=put,
            learn=self.links.learn,
            begin=self.begin,
            read_every=read_every,
            on_refresh_failed=on_refresh_failed,
        )
        self.wait_reporter = WaitReporter(core, store, agent_log, boottime, self.links.heard_wait)
        self._wait_teller = WaitTeller(facts, self.links.tell_wait, boottime)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task until `run` ends. If the task fails, so does `run`."""
        return self._tasks.create_task(work)

    async def run(
        self,
        perform: Callable[[actions.Action], None],
        *,
        observe: Callable[[Event, Sequence[actions.Action], float], None] = lambda *_: None,
        after: Callable[[Event, Sequence[actions.Action]], None] = lambda *_: None,
        work: Sequence[Coroutine[Any, Any, None]] = (),
        settle: Callable[[float], Awaitable[object]] | None = None,
        stop: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Take part in the job until the core ends its node; return the exit code.

        `perform` does the actions that concern workers and reports. `observe` gets each event, the actions that the
        core requests, and the time of the event, before these actions are performed; `after` is called afterwards.
        The coroutines of `work` run at the same time. When the core has ended, `settle` writes pending data within a
        limit in seconds. `stop` is always called before the lease is revoked: no worker may outlive the lease.

        Raises the first `ElasticError` of any of these.
        """
        code = 0
        try:
            async with self._tasks:
                for coroutine in (self.store_actions.run(), self.wait_reporter.run(), self.history.run(), *work):
                    self.begin(coroutine)
                code = await self._drive(perform, observe, after)
                await (settle or self.history.settle)(CLOSING_LIMIT_S)
                raise _CoreFinished
        except* _CoreFinished:
            pass
        except* ElasticError as failed:
            raise _first(failed) from failed
        except* (OSError, RuntimeError) as failed:
            if (lack := limits.shortage_line(failed)) is None:
                raise
            raise lack from failed
        finally:
            self._cancel_wake()
            self._wait_teller.close()
            self.links.close()
            if stop is not None:
                await stop()
            await self.store_actions.give_back_lease()
        return code

    async def _drive(
        self,
        perform: Callable[[actions.Action], None],
        observe: Callable[[Event, Sequence[actions.Action], float], None],
        after: Callable[[Event, Sequence[actions.Action]], None],
    ) -> int:
        """Read events until the core ends its node; return the exit code."""
        self._plan_wake()
        while True:
            next_event, arrived_at = await self._events.get()
            for event in (*self.links.held_up_events(), next_event):
                wanted = self.core.handle(event, boottime())
                observe(event, wanted, arrived_at)
                for action in wanted:
                    self._perform(action, perform)
                self.wait_reporter.after_event()
                self._wait_teller.after_event()
                after(event, wanted)
                for action in wanted:
                    if isinstance(action, actions.ExitAgent):
                        return action.code
            self._plan_wake()

    def _perform(self, action: actions.Action, perform: Callable[[actions.Action], None]) -> None:
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
                | actions.RefreshLease()
            ):
                self.store_actions.perform(action)
            case (
                actions.WatchLinks()
                | actions.DoubtLinks()
                | actions.SetHeartbeats()
                | actions.TryPeer()
                | actions.AskVouch()
                | actions.CloseInbound()
            ):
                self.links.perform(action)
            case actions.LogLine():
                self._log(action)
            case actions.NoteSilence():
                generation = self.core.facts.generation
                if action.step is actions.SilenceStep.EVICTED:
                    self.history.add_eviction(action, generation.g if generation is not None else 0)
            case _:
                perform(action)

    def _log(self, line: actions.LogLine) -> None:
        log = self._agent_log
        write = log.always if line.final else log.warning if line.warn else log.debug if line.detail else log.info
        write(line.text)

    def report_verdict(self, action: actions.ReportVerdict) -> None:
        """Log how the job ended."""
        verdict = action.verdict
        if action.late:
            self._agent_log.report(failure_report.ended_lines(verdict, self.core.facts.keys.job_id, time.time()))
            return
        log = self._agent_log.info if verdict.status is FinalStatus.COMPLETED else self._agent_log.always
        log(f"the job {failure_report.HOW_ENDED[verdict.status]}: {verdict.reason}")

    def _cancel_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()

    def _plan_wake(self) -> None:
        self._cancel_wake()
        if (at := self.core.wake_at) is not None:
            delay_s = max(at - boottime(), 0.0)
            self._wake = asyncio.get_running_loop().call_later(delay_s, self._events.put_nowait, Tick())


def _first(group: BaseExceptionGroup[ElasticError]) -> ElasticError:
    """Return the first error of a group, at any depth."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
