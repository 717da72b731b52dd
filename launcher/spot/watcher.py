"""Watches for the notice that this machine is taken back, beside everything else that the agent does.

It can only ever ask for a drain, say a line, or keep a node that has not joined from joining. A metadata server that is
away or slow changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from elastic.core.agent.events import DrainRequested, Event
from elastic.core.agent.state import DEADLINE_SPARE_S
from elastic.errors import MachineTaken
from launcher.logs.logger import AgentLog
from launcher.spot import aws, azure, gcp
from launcher.spot import provider as spot_provider
from launcher.spot.endpoint import MetadataEndpoint, endpoint
from launcher.spot.protocol import (
    InterruptionNotice,
    MetadataRequest,
    MetadataResponse,
    PollResult,
    Watch,
    polled,
)
from launcher.system.clock import boottime
from launcher.system.time_limit import wait_at_most

TRY_AGAIN = 4
"""The exit code of a node whose machine goes: nothing is wrong, another machine can go on."""
EARLIER_S = 1.0
"""A notice that leaves so much less time than the one before is told again."""
REMARKS_MAX = 100
"""Of the whole life of an agent: a server that says another one each time fills no log."""
FIRST_S = 1.0
"""So long after its start a node waits for the first answers before it joins. A server answers within milliseconds."""
HELD_EVERY_S = 300.0
"""So often a node that does not join says why."""
WATCHES: Mapping[str, tuple[Watch, ...]] = {"aws": aws.WATCHES, "gcp": gcp.WATCHES, "azure": azure.WATCHES}
"""What is asked of each provider, at the same time."""


class SpotWatch:
    """The notices for the machine of this node."""

    def __init__(
        self,
        spot: str,
        environ: Mapping[str, str],
        agent_log: AgentLog,
        put: Callable[[Event], None],
        joins: Callable[[], bool],
    ) -> None:
        """Nothing is asked yet.

        `spot` is the value of the flag; `put` takes the events; `joins` tells whether the node has not joined yet.
        """
        self._spot = spot
        self._environ = environ
        self._agent_log = agent_log
        self._put = put
        self._joins = joins
        self._told: float | None = None
        self._enters = True
        """Whether `wait_clear` has not let the node in yet."""
        self._began = boottime()
        self._unheard: set[Watch] = set()
        """Of these nobody knows yet whether they have a notice."""
        self._standing: dict[Watch, tuple[InterruptionNotice, float]] = {}
        """The notices that stand, with the time at which this machine may be gone."""
        self._changed = asyncio.Event()
        self._remarked: dict[tuple[Watch, str], set[str]] = {}
        """What was said of the newest answer of each watch, by what was asked for."""
        self._remarks = 0
        self._troubled: set[Watch] = set()

    async def run(self) -> None:
        """Watch until cancelled; return at once where there is nothing to watch."""
        provider = spot_provider.detect_provider() if self._spot == "auto" else self._spot
        if provider == "none":
            return
        where = endpoint(provider, self._environ)
        self._agent_log.debug(f"watching {where} for the notice that this machine is taken back (--spot {provider})")
        self._unheard.update(WATCHES[provider])
        async with asyncio.TaskGroup() as group:
            for watch in WATCHES[provider]:
                group.create_task(self._follow(watch, where))

    @property
    def held(self) -> str:
        """Why this node does not join yet, "" if no notice keeps it out."""
        if not self._enters or not self._standing:
            return ""
        notice, _ = min(self._standing.values(), key=lambda one: one[1])
        return f"{notice.reason}: this node does not join"

    async def wait_clear(self) -> None:
        """Wait until no notice stands: a node of a machine that goes would cost the others two restarts.

        Its exit would be no end either: systemd starts it again. Raises `MachineTaken` when the time of the notice is
        over, and no further answer says that it still stands.
        """
        said_at = None
        while self._standing or (self._unheard and boottime() < self._began + FIRST_S):
            now, until = boottime(), self._began + FIRST_S
            if self._standing:
                watch, (notice, until) = min(self._standing.items(), key=lambda item: item[1][1])
                if now >= until and watch in self._troubled:
                    raise MachineTaken(f"{notice.reason}: this node does not join, the job stays open")
                if said_at is None or now >= said_at + HELD_EVERY_S:
                    said_at = now
                    self._agent_log.warning(f"{notice.reason}: this node does not join and waits; the job stays open")
                # While the server answers, what it says counts: the time may be a guess (Google names none).
                line_at = said_at + HELD_EVERY_S
                until = min(until, line_at) if watch in self._troubled else line_at
            self._changed.clear()
            await wait_at_most(max(until - now, 0.0), self._changed.wait())
        self._enters = False
        if said_at is not None:
            self._agent_log.info("the notice was withdrawn: this node joins")

    async def _follow(self, watch: Watch, where: MetadataEndpoint) -> None:
        path = ""

        async def ask(request: MetadataRequest) -> MetadataResponse:
            nonlocal path
            path = request.path.partition("?")[0]
            return await _answer(where, request)

        async for heard in polled(watch, ask):
            self._note(watch, heard)
            if not heard.trouble:
                self._remark((watch, path), {*heard.remarks})
            if heard.trouble or heard.pause_s:
                self._trouble(watch, where, heard.trouble)
            await asyncio.sleep(heard.pause_s)

    def _note(self, watch: Watch, heard: PollResult) -> None:
        """Whether there is a notice, as the newest answer says; the first one counts."""
        if heard.notices:
            first = min(heard.notices, key=lambda notice: notice.left_s)
            self._standing[watch] = first, boottime() + first.left_s
            self._notice(first)
        elif heard.notices is not None:
            self._standing.pop(watch, None)
        if heard.notices is not None or heard.trouble:
            self._unheard.discard(watch)
            self._changed.set()

    def _notice(self, notice: InterruptionNotice) -> None:
        if self._enters:
            return  # `wait_clear` keeps it out.
        deadline = boottime() + notice.left_s
        if self._told is not None and deadline > self._told - EARLIER_S:
            return
        self._told = deadline
        if not self._joins():  # Who has not joined says in one line that it does not.
            left_s = notice.left_s - DEADLINE_SPARE_S
            self._agent_log.warning(
                f"{notice.reason}, in {notice.left_s:.0f} s: this node drains; its workers have {left_s:.0f} s"
            )
        self._put(DrainRequested(TRY_AGAIN, notice.reason, deadline))

    def _remark(self, asked: tuple[Watch, str], texts: set[str]) -> None:
        """Say what the answer before did not say. What is gone is forgotten: the next time it is news again."""
        for text in sorted(texts - self._remarked.get(asked, set())):
            self._remarks += 1
            if self._remarks <= REMARKS_MAX:
                self._agent_log.info(text)
        self._remarked[asked] = texts

    def _trouble(self, watch: Watch, where: MetadataEndpoint, trouble: str) -> None:
        """Say once that notices may not be seen, and once that they are again; `auto` may well find nothing."""
        before = bool(self._troubled)
        (self._troubled.add if trouble else self._troubled.discard)(watch)
        tell = self._agent_log.debug if self._spot == "auto" else self._agent_log.warning
        if trouble and not before:
            tell(f"no notice of {where} can be seen ({trouble}); it is asked again; training goes on")
        elif before and not self._troubled:
            tell(f"{where} answers again: a notice will be seen")


async def _answer(where: MetadataEndpoint, ask: MetadataRequest) -> MetadataResponse:
    """What a server said, with status 0 if it did not in time, or not in HTTP."""
    from launcher.spot.http import fetch  # Only a machine of a cloud needs it.

    try:
        async with asyncio.timeout(ask.timeout_s):
            return await fetch(where, ask)
    except OSError:  # TimeoutError is one.
        return MetadataResponse(came_at=time.time())
