"""One node's membership of a job, as torch's agent in one thread and the node's loop in another see it.

It refers to nothing of the rendezvous handler, so that a handler to which nothing refers any more is collected, and its
membership is ended then.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet

from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.state import AgentState
from elastic.errors import ElasticError
from launcher.torchrun.loop_thread import AgentLoopThread
from launcher.torchrun.options import RdzvSettings
from launcher.torchrun.rounds import RoundTracker
from launcher.torchrun.session import TorchrunSession, WorkersAction

LEAVE_LIMIT_S = 6.0
"""A node that leaves has said so within this time, or others find out by themselves."""
LEAVES = "torchrun ends"


class Membership:
    """Not a member before `join`. `changed` guards `rounds`, and is notified of whatever may end a wait."""

    def __init__(self, settings: RdzvSettings) -> None:
        """Nothing runs yet."""
        self._settings = settings
        self.changed = threading.Condition()
        self.rounds = RoundTracker()
        self.backstage = AgentLoopThread()
        self.stay: TorchrunSession | None = None

    def join(self) -> TorchrunSession:
        """This node's stay in the job; a new one where there is none."""
        if self.stay is None:
            self.stay = TorchrunSession(self._settings, self.backstage, self._on_workers_action, self._notify_all)
        return self.stay

    def current(self) -> TorchrunSession | None:
        """The stay, unless it has ended."""
        return self.stay if self.stay is not None and not self.stay.end.done() else None

    def leave(self, limit_s: float = LEAVE_LIMIT_S) -> bool:
        """Leave the job, which stays open; tell whether the others know. Takes no longer than `limit_s`."""
        stay = self.stay
        if stay is None:
            return True
        with self.changed:
            gone = self.rounds.leave()
        stay.leave(signal.SIGTERM, LEAVES, gone)
        try:
            stay.end.result(limit_s)
        except (ElasticError, CancelledError, NotYet):
            return False
        finally:
            self.forget()
        return True

    def forget(self) -> None:
        """The stay has ended; the next `join` begins another one."""
        self.stay = None

    def abandon(self) -> None:
        """Leave the job and end the thread: nobody has a use for this membership, or the process ends.

        Python may call it in any thread, also in the loop's own, which cannot wait for itself.
        """
        if self.backstage.forked:
            return
        if not self.backstage.inside:
            self.leave()
        self.backstage.close()

    def _on_workers_action(self, action: WorkersAction, facts: AgentState) -> None:
        """The core starts or stops workers. In the loop's thread."""
        with self.changed:
            if isinstance(action, actions.StartWorkers):
                self.rounds.start(action)
                events: list[agent_events.Event] = []
            else:
                events = self.rounds.stop(action, facts.generation)
            self.changed.notify_all()
        if events and self.stay is not None:
            self.stay.put(*events)

    def _notify_all(self) -> None:
        with self.changed:
            self.changed.notify_all()
