"""One running world: it handles the events of its replicas, decides when the world ends, and stops the replicas."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastic.channel import messages
from elastic.testing import replica
from elastic.testing.environment import ReplicaPlace
from elastic.testing.fork_client import ForkServer
from elastic.testing.node import ReplicaNode
from elastic.testing.result import Replica, WorldResult
from elastic.testing.schedule import At, End, Failure, NodeFailure, Planned, Until

FAILURE_STOP_TIMEOUT_S = 2.0
"""The time from SIGTERM to SIGKILL after a node failure or a failure, as in elastic-launch."""
PLANNED_STOP_TIMEOUT_S = 15.0
"""The time from SIGTERM to SIGKILL in a planned stop, for a replica that does not exit."""
STOPPED = 128 + signal.SIGTERM


@dataclass(slots=True)
class RunningReplica:
    """A started replica."""

    place: ReplicaPlace
    node: ReplicaNode
    files: str
    seen: Replica
    listens: bool = False
    left: bool = False
    """Whether it has reported that it has saved and is exiting."""
    signalled: bool = False
    """Whether this run has signalled it, so that its exit is not a failure."""

    def __str__(self) -> str:
        """Return its rank, world and node. Worlds count from 0, as in `worlds`."""
        return f"rank {self.place.rank} of world {self.place.generation - 1} ({self.place.node})"


@dataclass(slots=True)
class WorldRun:
    """A world from its start to the exit of its last replica.

    `broken` is why it does not go as scheduled, "" if it does; its replicas are then stopped.
    """

    server: ForkServer
    until: Until
    failed_nodes: Sequence[int]
    actors: list[RunningReplica]
    result: WorldResult
    saved: str = ""
    """The newest checkpoint as the job records it, for the next world."""
    ending: bool = False
    broken: str = ""
    kill_at_s: float | None = None
    _exact: bool = False
    """Whether the function calls `reached` with its steps; reports on the channel then do not end the world."""
    _passed: bool = False
    """Whether a step was reported that ends this world; a planned stop waits until all replicas listen."""
    _waiting: dict[int, socket.socket] = field(default_factory=dict)
    _by_number: dict[int, RunningReplica] = field(init=False)

    def __post_init__(self) -> None:
        self._by_number = {actor.place.number: actor for actor in self.actors}

    @property
    def running(self) -> list[RunningReplica]:
        """The replicas that have not exited."""
        return [actor for actor in self.actors if actor.seen.code is None]

    def heard(self, hello: messages.WorkerHello, message: messages.WorkerMessage) -> None:
        """Handle a message of a replica on the local channel."""
        if hello.generation != self.result.generation or hello.rank >= len(self.actors):
            return
        actor = self.actors[hello.rank]
        if isinstance(message, messages.AcceptsPlannedStop):
            actor.listens = True
            self._end_if_reached()
        elif isinstance(message, messages.SavedAndLeaving):
            actor.left = True
            actor.seen.step = max(message.step, actor.seen.step or 0)
        elif isinstance(message, messages.AgentLogLine):
            actor.seen.notes.append(message.text)
        elif isinstance(message, messages.CheckpointSaved):
            self.result.saved = max(message.step, self.result.saved or 0)
            self.saved = json.dumps({"step": message.step, "host": actor.place.node, "folder": message.folder})
        elif isinstance(message, messages.Progress):
            actor.seen.step = max(message.step, actor.seen.step or 0)
            if not self._exact and _matches(self._at, message.step):
                self._passed = True
                self._end_if_reached()

    def reached(self, message: replica.MarkReached, end: socket.socket) -> None:
        """Handle a call of `reached`: the replica continues at once unless the world ends there."""
        actor = self._by_number.get(message.number)
        if actor is None:
            return
        if isinstance(message.what, int):
            self._exact = True
            actor.seen.step = max(message.what, actor.seen.step or 0)
        if self.ending or self.broken or not _matches(self._at, message.what):
            _release(end)
        else:
            self._waiting[actor.place.rank] = end
            self._end_if_reached()

    def exited(self, number: int, code: int) -> None:
        """Handle the exit of a replica."""
        actor = self._by_number[number]
        actor.seen.code = code
        self._waiting.pop(actor.place.rank, None)
        asked = self.ending and isinstance(self.until, Planned)
        if self.broken or actor.signalled or (asked and (code == STOPPED or actor.left)):
            return
        if code != 0 and isinstance(self.until, Planned) and self.until.may_fail:
            self.ending = True
            self._release()
            self.stop_all()
        elif asked:
            self._break(actor, f"{_did(code)}, instead of exiting with code 143 in the planned stop at {self._at!r}")
        elif self.ending and isinstance(self.until, Failure):
            if code == 0 and actor.place.rank == self.until.rank:
                self._break(actor, "returned, although the schedule made it fail: does it catch the error?")
            else:
                self.stop_all()
        elif code != 0:
            if isinstance(self.until, Failure | NodeFailure) and self.until.at is None:
                self._end()
            else:
                self._break(actor, _did(code))
        elif not self.running and not self.ending and not isinstance(self.until, End):
            self._break(actor, f"and all others returned before the scheduled end of the world ({_words(self.until)})")
        else:
            self._end_if_reached()

    def stop_all(self) -> None:
        """Send SIGTERM to all running replicas; `tick` kills them after the stop timeout."""
        for actor in self.running:
            if not actor.signalled:
                self.signal(actor, signal.SIGTERM)
        self.kill_at_s = time.monotonic() + FAILURE_STOP_TIMEOUT_S

    def signal(self, actor: RunningReplica, number: int, *, session: bool = True) -> None:
        """Signal a replica, or its whole session. Its exit is then not a failure."""
        actor.signalled = True
        self.server.signal(actor.place.number, number, session=session)

    def tick(self) -> None:
        """Kill the running replicas after the stop timeout."""
        self.kill_at_s = None
        for actor in self.running:
            if not actor.signalled and not self.broken:
                self.broken = f"{actor} was still running {PLANNED_STOP_TIMEOUT_S:g} s after the request to stop"
            self.signal(actor, signal.SIGKILL)

    def waiting_words(self) -> str:
        """Return which ranks wait in `reached` for which; "" if none does."""
        if not self._waiting:
            return ""
        others = ", ".join(str(actor.place.rank) for actor in self.running if actor.place.rank not in self._waiting)
        return f"ranks {', '.join(map(str, self._waiting))} wait in reached({self._at!r}) for ranks {others}"

    @property
    def _at(self) -> At | None:
        return None if isinstance(self.until, End) else self.until.at

    def _break(self, actor: RunningReplica, why: str) -> None:
        self.broken = f"{actor} {why}"
        self._release()
        self.stop_all()

    def _end_if_reached(self) -> None:
        """End the world if all replicas wait at its end, or a report has passed it.

        A planned stop by reports waits until all running replicas listen, unless no replica of this world does.
        """
        deaf = not all(actor.listens for actor in self.running) and any(actor.listens for actor in self.actors)
        passed = self._passed and not (isinstance(self.until, Planned) and deaf)
        if passed or (self._waiting and len(self._waiting) == len(self.running)):
            self._end()

    def _end(self) -> None:
        """Start to end this world."""
        if self.ending or self.broken:
            return
        self.ending = True
        if isinstance(self.until, Planned):
            self._ask()
        elif isinstance(self.until, NodeFailure):
            self._fail_nodes()
        elif isinstance(self.until, Failure) and self.until.at is not None:
            self._fail(self.until)
        else:  # The schedule waited for a replica to fail on its own.
            self.stop_all()

    def _ask(self) -> None:
        """Request a planned stop, as elastic-launch does: SIGTERM only for replicas that do not listen."""
        for actor in self.running:
            stop = messages.PlannedStopRequest("because the schedule changes the world")
            if not actor.listens or not actor.node.send(actor.place.generation, actor.place.rank, stop):
                self.signal(actor, signal.SIGTERM)
        self.kill_at_s = time.monotonic() + PLANNED_STOP_TIMEOUT_S
        self._release()

    def _fail_nodes(self) -> None:
        for actor in self.running:
            if actor.place.m_id in self.failed_nodes:
                self.signal(actor, signal.SIGKILL)
        for actor in self.actors:
            if actor.place.m_id in self.failed_nodes:
                actor.node.close()
        self.stop_all()

    def _fail(self, failure: Failure) -> None:
        number = signal.SIGKILL if failure.by == "kill" else replica.FAIL
        self.server.signal(self.actors[failure.rank].place.number, number)

    def _release(self) -> None:
        """Release the waiting replicas. After a node failure or a failure they wait until they are stopped."""
        for end in self._waiting.values():
            _release(end)
        self._waiting.clear()


def _matches(at: At | None, what: At) -> bool:
    if isinstance(at, int) and isinstance(what, int):
        return what >= at
    return at is not None and at == what


def _release(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It has exited; its exit is handled.
        end.send(replica.GO)


def _did(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}" if code else "returned"


def _words(until: Planned | NodeFailure | Failure) -> str:
    if not isinstance(until, Planned) and until.at is None:
        return "when a replica fails"
    return f"{type(until).__name__} at {until.at!r}"
