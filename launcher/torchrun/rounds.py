"""Between the core, which starts and stops the workers of a generation, and torch's agent, which has them (pure).

A generation that starts is *offered*; torch's agent *takes* it when `next_rendezvous` returns, and from then on has
its workers. Nobody can make it stop them: it asks for the number of nodes that wait, and comes back to
`next_rendezvous` when that is not 0. That it has come back says that they are gone, and torch's interface does not say
how they ended. If nobody had asked it to come back, one of them has failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic.core.agent.actions import StartWorkers, StopWorkers
from elastic.core.agent.events import Event, WorkerExited, WorkersGone
from elastic.core.failure_class import FailureClass
from elastic.core.model import ANY_RANK, Generation, WorkerExit

FAILED = "torchrun's own output says how"
"""What is known of a worker that failed while torch's agent has restarts left."""
LOG = "torchrun's own output"
"""Where to look for more: the plugin does not know the logs."""


class RoundTracker:
    """Which generation is offered, which is taken, and whether its workers are to stop."""

    def __init__(self) -> None:
        """Nothing has started."""
        self._offered: StartWorkers | None = None
        self.taken: StartWorkers | None = None
        """The generation whose workers torch's agent has."""
        self.stops = False
        """Whether these workers are to be stopped."""
        self._newest: Generation | None = None

    def waiting(self) -> int:
        """How many nodes wait for the next round: newcomers, and 1 where somebody was lost, failed, or leaves."""
        if self.taken is None or not self.stops:
            return 0
        old = {place.node for place in self.taken.generation.members}
        newest = self._newest.members if self._newest is not None else ()
        return max(1, sum(place.node not in old for place in newest))

    def start(self, action: StartWorkers) -> None:
        """The core starts a generation."""
        self._offered = action

    def stop(self, action: StopWorkers, newest: Generation | None) -> list[Event]:
        """The core stops it; `newest` is what comes instead. One that nobody has taken is over at once."""
        self._newest = newest
        if self._offered is not None and self._offered.generation.g == action.g:
            self._offered = None
            return [WorkersGone(action.g)]
        if self.taken is not None and self.taken.generation.g == action.g:
            self.stops = True
        return []

    def take(self) -> StartWorkers | None:
        """Torch's agent waits: give it what is offered, None if nothing is."""
        if self._offered is None:
            return None
        self.taken, self._offered, self.stops = self._offered, None, False
        return self.taken

    def rejoin(self) -> list[Event]:
        """Torch's agent asks for the next round; its workers are gone."""
        failed = WorkerExit(rank=ANY_RANK, code=1, words=FAILED, log=LOG, failure=FailureClass.SECONDARY)
        return self._gone(self.taken, [] if self.stops else [failed])

    def finish(self) -> list[Event]:
        """Every worker of this node has ended well, and torch's agent ends."""
        taken = self.taken
        return self._gone(taken, [WorkerExit(rank=taken.m_id, code=0, words="ended")]) if taken is not None else []

    def fail(self, exits: Sequence[WorkerExit]) -> list[Event]:
        """Workers of this node have failed, and torch's agent ends because it has no restart left."""
        return self._gone(self.taken, exits)

    def leave(self) -> list[Event]:
        """Torch's agent ends, and the job goes on without it; what workers it had are gone."""
        return self._gone(self.taken or self._offered, ())

    def _gone(self, taken: StartWorkers | None, exits: Sequence[WorkerExit]) -> list[Event]:
        if taken is None:
            return []
        self.taken = self._offered = None
        self.stops = False
        g = taken.generation.g
        return [*(WorkerExited(g, one, own=True) for one in exits), WorkersGone(g)]
