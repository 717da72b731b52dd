"""A node's membership of a job, shared by torch's agent in one thread and the node's loop in another.

It has no reference to the rendezvous handler, so that a handler without references is collected, and its membership is
ended then.
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
"""A leaving node has announced it within this time, or others detect it on their own."""
LEAVES = "torchrun ends"


class Membership:
    """Not a member before `join`. `changed` guards `rounds`, and is notified of whatever may end a wait."""

    def __init__(self, settings: RdzvSettings) -> None:
        """`settings` are those of the session that `join` starts."""
        self._settings = settings
        self.changed = threading.Condition()
        self.rounds = RoundTracker()
        self.backstage = AgentLoopThread()
        self.stay: TorchrunSession | None = None

    def join(self) -> TorchrunSession:
        """Return this node's session in the job; a new one if there is none."""
        if self.stay is None:
            self.stay = TorchrunSession(self._settings, self.backstage, self._on_workers_action, self._notify_all)
        return self.stay

    def current(self) -> TorchrunSession | None:
        """The session, unless it has ended."""
        return self.stay if self.stay is not None and not self.stay.end.done() else None

    def leave(self, limit_s: float = LEAVE_LIMIT_S) -> bool:
        """Leave the job, which stays open; return whether the other nodes know. Takes at most `limit_s` seconds."""
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
        """Forget a session that has ended; the next `join` begins another one."""
        self.stay = None

    def abandon(self) -> None:
        """Leave the job and end the thread: this membership is no longer used, or the process exits.

        Python may call it in any thread, even in the loop's own, which cannot wait for itself.
        """
        if self.backstage.forked:
            return
        if not self.backstage.inside:
            self.leave()
        self.backstage.close()

    def _on_workers_action(self, action: WorkersAction, facts: AgentState) -> None:
        """Handle a start or stop of workers by the core. In the loop's thread."""
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
