"""The sessions of the workers at one server (pure: the time is an argument).

    (never seen) ── hello ──► here ── close ──► closed
                               │ ▲
                         break │ │ hello
                               ▼ │
                             broken ── lost_after_s ──► lost

A worker that is here or broken is *live*: synchronous steps wait for it. `hello` brings a worker back from every state.
With the same session it resumes; with a new one it has restarted, and the server rejects the old session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from elastic.errors import SessionReplaced

MISSING_AFTER_S = 120.0
"""Without the launcher: the time that a server waits for workers that never joined, once all others have ended."""
RETIRED_MAX = 64
"""The number of replaced sessions of a worker that are remembered."""
REPLACED = "another process has connected as worker {} and replaces this one"


class UnknownSession(Exception):
    """This server does not know the session, for example because it was restarted: the worker opens it again."""


class SessionState(StrEnum):
    """The state of the session of a worker."""

    HERE = "here"
    BROKEN = "broken"
    CLOSED = "closed"
    LOST = "lost"

    @property
    def live(self) -> bool:
        """Whether steps wait for the worker."""
        return self in (SessionState.HERE, SessionState.BROKEN)


@dataclass(slots=True)
class WorkerSession:
    """The state of one worker's session."""

    session: str
    state: SessionState
    since: float
    applied: int = 0
    """The number of the last push of this session that was applied."""
    registered: bool = False
    """Whether it has registered its model since it was last not live."""
    retired: tuple[str, ...] = ()
    """The sessions that this one has replaced."""


class WorkerSessions:
    """Every worker that was ever seen, by its number."""

    def __init__(self, lost_after_s: float) -> None:
        """A worker whose connection broke has failed after `lost_after_s`."""
        self.seen: dict[int, WorkerSession] = {}
        self._lost_after_s = lost_after_s

    def open(self, worker: int, session: str, now: float) -> None:
        """Open or resume a session. `SessionReplaced` for one that was replaced."""
        before = self.seen.get(worker)
        if before is None:
            self.seen[worker] = WorkerSession(session, SessionState.HERE, now)
        elif before.session == session:
            self.seen[worker] = replace(before, state=SessionState.HERE, since=now)
        elif session in before.retired:
            raise SessionReplaced(REPLACED.format(worker))
        else:
            retired = (*before.retired, before.session)[-RETIRED_MAX:]
            self.seen[worker] = WorkerSession(session, SessionState.HERE, now, retired=retired)

    def restore(self, worker: int, session: str, applied: int, state: SessionState, now: float) -> None:
        """Restore the session of a worker from before this server was restarted.

        If it was live, its connection counts as broken: the worker has `lost_after_s` to reconnect.
        """
        self.seen[worker] = WorkerSession(session, SessionState.BROKEN if state.live else state, now, applied)

    def disconnected(self, worker: int, now: float) -> bool:
        """The newest connection of a worker ended. False if the worker had closed."""
        one = self.seen[worker]
        if one.state is not SessionState.HERE:
            return False
        one.state, one.since = SessionState.BROKEN, now
        return True

    def close(self, session: str, now: float) -> int:
        """The worker has done its work; its number."""
        worker = self.check(session)
        self._end(self.seen[worker], SessionState.CLOSED, now)
        return worker

    def lapse(self, now: float) -> list[int]:
        """Return the workers that have been lost since the last call."""
        lost = []
        for worker, one in self.seen.items():
            if one.state is SessionState.BROKEN and now >= one.since + self._lost_after_s:
                self._end(one, SessionState.LOST, now)
                lost.append(worker)
        return lost

    @staticmethod
    def _end(one: WorkerSession, state: SessionState, now: float) -> None:
        one.state, one.since, one.registered = state, now, False

    def next_lapse(self) -> float | None:
        """Return when to call `lapse` next, None if no connection is broken."""
        return min(
            (one.since + self._lost_after_s for one in self.seen.values() if one.state is SessionState.BROKEN),
            default=None,
        )

    def check(self, session: str) -> int:
        """The worker that has this session open. `UnknownSession`, or `SessionReplaced` by another one."""
        number, _, _ = session.partition("-")
        seen = self.seen.get(int(number)) if number.isascii() and number.isdecimal() and len(number) < 12 else None
        if seen is None:
            raise UnknownSession(session)
        if seen.session != session:
            raise SessionReplaced(REPLACED.format(number))
        if not seen.state.live:
            raise UnknownSession(session)
        return int(number)

    def registered(self) -> list[int]:
        """Return the live workers that have registered their model, in order."""
        return sorted(worker for worker, one in self.seen.items() if one.registered)

    def initializer(self, trainers: int) -> int | None:
        """Return the registered worker that sends the initial values: 0, or the lowest one if 0 cannot be the first."""
        ready = self.registered()
        if not ready:
            return None
        zero = self.seen.get(0)
        if ready[0] == 0 or (zero is not None and zero.state in (SessionState.CLOSED, SessionState.LOST)):
            return ready[0]
        return ready[0] if zero is None and len(self.seen) >= trainers else None

    def over_at(self, trainers: int, *, replaced: bool) -> float | None:
        """The time since which no further worker is expected; None while one is live, or may still connect.

        That is the case once `trainers` workers have connected and ended. Without a launcher, the server gives up
        workers that never connected some time after the last one has ended. If lost workers are replaced (`replaced`,
        under the launcher), every worker must have closed its session.
        """
        ended = (SessionState.CLOSED,) if replaced else (SessionState.CLOSED, SessionState.LOST)
        if not self.seen or any(session.state not in ended for session in self.seen.values()):
            return None
        last = max(session.since for session in self.seen.values())
        if len(self.seen) >= trainers:
            return last
        return None if replaced else last + MISSING_AFTER_S
