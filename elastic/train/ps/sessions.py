"""Who is there: one server's view of the workers. Pure: the time is an argument.

    (never seen) ── hello ──► here ── close ──► closed
                               │ ▲
                         break │ │ hello
                               ▼ │
                             broken ── lost_after_s ──► lost

A worker that is here or broken is *live*: synchronous steps wait for it. `hello` brings a worker back from every state.
With the session that it had it goes on where it was, with another one it has begun anew and the old one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from elastic.errors import SessionReplaced

MISSING_AFTER_S = 120.0
"""By hand: how long a server stays for workers that were never seen, once all others have ended."""
RETIRED_MAX = 64
"""Sessions of one worker that are remembered as replaced. More processes than that do not fight for one number."""
REPLACED = "another process has come as worker {}; this one is no longer listened to"


class UnknownSession(Exception):
    """This server does not know the session (any more): the worker says hello again."""


class SessionState(StrEnum):
    """Of one worker."""

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
    """What is known of one worker."""

    session: str
    state: SessionState
    since: float
    applied: int = 0
    """The number of the last push of this session that was applied."""
    registered: bool = False
    """Whether it has said what its model is, since it was last not live."""
    retired: tuple[str, ...] = ()
    """The sessions that this one has replaced."""


class WorkerSessions:
    """Every worker that was ever seen, by its number."""

    def __init__(self, lost_after_s: float) -> None:
        """Nobody was seen yet. A worker whose connection broke is lost after `lost_after_s`."""
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
        """Remember a worker from before this server was started again.

        If it was live it counts as broken from now on: it has `lost_after_s` to come back.
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
        """The workers that are lost by now and were not before."""
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
        """When to call `lapse` next, None if nobody is broken."""
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
        """The live workers that have said what their model is, in order."""
        return sorted(worker for worker, one in self.seen.items() if one.registered)

    def initializer(self, trainers: int) -> int | None:
        """Which registered worker gives first values: 0; without it, once it cannot come first, the lowest one."""
        ready = self.registered()
        if not ready:
            return None
        zero = self.seen.get(0)
        if ready[0] == 0 or (zero is not None and zero.state in (SessionState.CLOSED, SessionState.LOST)):
            return ready[0]
        return ready[0] if zero is None and len(self.seen) >= trainers else None

    def over_at(self, trainers: int, *, replaced: bool) -> float | None:
        """When no worker will come any more; None while one is live, or may still come.

        That is so when `trainers` have come and ended. By hand, those that never came are given up a while after the
        last one has ended. Where lost workers are replaced by others (`replaced`, under the launcher), every one must
        have closed.
        """
        ended = (SessionState.CLOSED,) if replaced else (SessionState.CLOSED, SessionState.LOST)
        if not self.seen or any(session.state not in ended for session in self.seen.values()):
            return None
        last = max(session.since for session in self.seen.values())
        if len(self.seen) >= trainers:
            return last
        return None if replaced else last + MISSING_AFTER_S
