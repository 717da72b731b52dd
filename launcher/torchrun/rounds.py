"""Mediates between the core, which starts and stops the workers of a generation, and torch's agent (pure).

A generation that starts is *offered*; torch's agent *takes* it when `next_rendezvous` returns, and from then on has its
workers. The core cannot make it stop them: torch's agent queries the number of waiting nodes, and returns to
`next_rendezvous` when that is not 0. Its return implies that the workers have exited, and torch's interface does not
report how they ended. If the core had not requested that return, one of them has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic.core.agent.actions import StartWorkers, StopWorkers
from elastic.core.agent.events import Event, WorkerExited, WorkersGone
from elastic.core.failure_class import FailureClass
from elastic.core.model import ANY_RANK, Generation, WorkerExit

FAILED = "torchrun's own output says how"
"""All that is known of a worker that failed while torch's agent has restarts left."""
LOG = "torchrun's own output"
"""Where to find further output: the plugin does not know the logs."""


class RoundTracker:
    """Tracks which generation is offered, which is taken, and whether its workers have to stop."""

    def __init__(self) -> None:
        """Start without a generation."""
        self._offered: StartWorkers | None = None
        self.taken: StartWorkers | None = None
        """The generation whose workers torch's agent has."""
        self.stops = False
        """Whether these workers have to be stopped."""
        self._newest: Generation | None = None

    def waiting(self) -> int:
        """Return how many nodes wait for the next round: joining nodes, and 1 if a node failed or leaves."""
        if self.taken is None or not self.stops:
            return 0
        old = {place.node for place in self.taken.generation.members}
        newest = self._newest.members if self._newest is not None else ()
        return max(1, sum(place.node not in old for place in newest))

    def start(self, action: StartWorkers) -> None:
        """Offer a generation that the core starts."""
        self._offered = action

    def stop(self, action: StopWorkers, newest: Generation | None) -> list[Event]:
        """Stop a generation that `newest` replaces. One that was not taken ends at once."""
        self._newest = newest
        if self._offered is not None and self._offered.generation.g == action.g:
            self._offered = None
            return [WorkersGone(action.g)]
        if self.taken is not None and self.taken.generation.g == action.g:
            self.stops = True
        return []

    def take(self) -> StartWorkers | None:
        """Return the generation that is offered to torch's waiting agent, None if there is none."""
        if self._offered is None:
            return None
        self.taken, self._offered, self.stops = self._offered, None, False
        return self.taken

    def rejoin(self) -> list[Event]:
        """Note that torch's agent requests the next round; its workers have exited."""
        failed = WorkerExit(rank=ANY_RANK, code=1, words=FAILED, log=LOG, failure=FailureClass.SECONDARY)
        return self._gone(self.taken, [] if self.stops else [failed])

    def finish(self) -> list[Event]:
        """Note that every worker of this node has ended well, and torch's agent exits."""
        taken = self.taken
        return self._gone(taken, [WorkerExit(rank=taken.m_id, code=0, words="ended")]) if taken is not None else []

    def fail(self, exits: Sequence[WorkerExit]) -> list[Event]:
        """Note that workers of this node have failed, and torch's agent exits because it has no restart left."""
        return self._gone(self.taken, exits)

    def leave(self) -> list[Event]:
        """Note that torch's agent exits, its workers have exited, and the job continues without it."""
        return self._gone(self.taken or self._offered, ())

    def _gone(self, taken: StartWorkers | None, exits: Sequence[WorkerExit]) -> list[Event]:
        if taken is None:
            return []
        self.taken = self._offered = None
        self.stops = False
        g = taken.generation.g
        return [*(WorkerExited(g, one, own=True) for one in exits), WorkersGone(g)]
