"""Reports the durations of each recovery in the log, the log directory and the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from elastic.channel.messages import (
    FirstCommit,
    GroupFormed,
    JoiningGroup,
    Progress,
    RestoreDone,
    Serving,
    WorkerMessage,
)
from elastic.core.agent.actions import Action
from elastic.core.agent.events import Event
from elastic.core.agent.state import AgentState
from launcher.agent.history_writer import HistoryWriter
from launcher.history import events
from launcher.history.ps_recovery_recorder import PsRecoveryRecorder
from launcher.history.recovery import Recovery, begun
from launcher.history.recovery_recorder import RecoveryRecorder
from launcher.logs.event_log import JsonEventLog
from launcher.logs.logger import AgentLog
from launcher.nursery import protocol
from launcher.system.processes import started_at
from launcher.workers.nursery_client import NurseryEvent
from launcher.workers.reports.states import TrackedProcess
from launcher.workers.reports.worker_channel import WorkerChannel


class RecoveryReporter:
    """Observes one agent; one node of the job reports each recovery, once."""

    def __init__(
        self,
        node: str,
        talk: WorkerChannel,
        agent_log: AgentLog,
        log: JsonEventLog,
        store: HistoryWriter,
        clock: Callable[[], float],
        *,
        tasks: bool,
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_own: Callable[[Recovery], None],
    ) -> None:
        """Take the agent's `clock`, which its workers share (CLOCK_BOOTTIME). `tasks`: for a parameter-server job.

        `begin` starts a task that ends with the agent. `on_own` gets each finished recovery of this node, even if
        another node reports it.
        """
        self._begin = begin
        self._timeline = (PsRecoveryRecorder if tasks else RecoveryRecorder)(node, started_at() or clock())
        self._node = node
        self._worker_channel = talk
        self._agent_log = agent_log
        self._log = log
        self._store = store
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._asking: set[asyncio.Task[None]] = set()
        self._on_own = on_own

    def observe(self, facts: AgentState, event: Event, actions: Sequence[Action], arrived: float) -> None:
        """Record an event that arrived at `arrived`, before its actions are performed."""
        self._timeline.observe(facts, event, actions, arrived=arrived, now=self._clock())
        for found in self._timeline.beginnings:
            self._store.note(events.of_beginning(found, self._node, time.time()))
        self._plan()

    def on_worker_event(self, event: NurseryEvent) -> None:
        """Record an event of the fork server."""
        match event:
            case protocol.ChildrenForked():
                self._timeline.spawned(event.g, self._clock())
                self._plan()
            case protocol.ChildExited() if event.code and not event.stopped:
                self._timeline.failed(event.g, min(event.at_s, self._clock()), self._clock())

    async def close(self, limit_s: float) -> None:
        """Report what is known about an unfinished recovery within `limit_s`, because this agent ends."""
        if self._timer is not None:
            self._timer.cancel()
        while (recovery := self._timeline.take(self._clock())) is not None:
            self._report(recovery)
        if (recovery := self._timeline.end()) is not None:
            self._report(recovery)
        if self._asking:
            _, late = await asyncio.wait(self._asking, timeout=limit_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Record a message of a worker."""
        timeline, g, now = self._timeline, heard.g, self._clock()
        match message:
            case JoiningGroup():
                timeline.asked_for_group(g, heard.local_rank, message.at, now)
            case GroupFormed():
                timeline.grouped(g, heard.local_rank, message.at, now)
            case RestoreDone():
                timeline.restored(g, message.step, message.at, now)
            case Progress():
                timeline.working(g, heard.local_rank, message.at, now, message.step)
            case FirstCommit() | Serving():
                timeline.working(g, heard.local_rank, message.at, now)
            case _:
                return
        self._plan()

    def _plan(self) -> None:
        """Set the timer for the next report."""
        due_at = self._timeline.due_at
        if self._timer is not None:
            if due_at is not None and self._timer_at == due_at:
                return  # If each message replaced the timer, it would never fire while very many come.
            self._timer.cancel()
            self._timer = None
        if due_at is not None:
            self._timer_at = due_at
            self._timer = asyncio.get_running_loop().call_later(max(due_at - self._clock(), 0.0), self._due)

    def _due(self) -> None:
        self._timer = None
        self._worker_channel.catch_up()
        if (found := self._timeline.take(self._clock())) is not None:
            self._on_own(found)
            self._report(found)
        self._plan()

    def _report(self, found: Recovery) -> None:
        if not found.tells:
            return
        if not found.foreign:
            self._say(found)
            return
        task = self._begin(self._ask(found))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, found: Recovery) -> None:
        """Read from the history how the recovery began, if another node knows that."""
        try:
            noted = await self._store.beginning(found)
            if noted is not None:
                found = begun(found, noted.text, noted.phases)
        finally:  # This agent may end before there is an answer.
            self._say(found)

    def _say(self, found: Recovery) -> None:
        self._log.write("start" if found.start else "recovery", found.g, found.fields)
        self._store.note(events.of_recovery(found, self._node, time.time(), self._clock()))
        (self._agent_log.debug if found.start else self._agent_log.info)(found.line)
