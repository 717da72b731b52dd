"""Watches for the preemption notice of this machine, independently of everything else that the agent does.

It can only request a drain, log a message, or keep a node that has not joined from joining. A metadata server that is
unavailable or slow changes nothing.
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
"""The exit code of a node whose machine is reclaimed: nothing is wrong, another machine can continue."""
EARLIER_S = 1.0
"""A notice that leaves this much less time than the previous one is logged again."""
REMARKS_MAX = 100
"""Per agent: a server that returns another remark each time does not fill the log."""
FIRST_S = 1.0
"""How long a starting node waits for the first answers before it joins. A server answers within milliseconds."""
HELD_EVERY_S = 300.0
"""How often a node that does not join logs why."""
WATCHES: Mapping[str, tuple[Watch, ...]] = {"aws": aws.WATCHES, "gcp": gcp.WATCHES, "azure": azure.WATCHES}
"""The values that are polled at each provider, at the same time."""


class SpotWatch:
    """The notices for the host of this node."""

    def __init__(
        self,
        spot: str,
        environ: Mapping[str, str],
        agent_log: AgentLog,
        put: Callable[[Event], None],
        joins: Callable[[], bool],
    ) -> None:
        """Create the watcher; `run` starts polling.

        `spot` is the value of the flag; `put` takes the events; `joins` tells whether the node has not joined yet.
        """
        self._spot = spot
        self._environ = environ
        self._agent_log = agent_log
        self._put = put
        self._joins = joins
        self._told: float | None = None
        self._enters = True
        """Whether `wait_clear` has not let the node join yet."""
        self._began = boottime()
        self._unheard: set[Watch] = set()
        """Watches of which it is unknown yet whether they have a notice."""
        self._standing: dict[Watch, tuple[InterruptionNotice, float]] = {}
        """The current notices, with the time at which this machine may be gone."""
        self._changed = asyncio.Event()
        self._remarked: dict[tuple[Watch, str], set[str]] = {}
        """The remarks of the newest answer of each watch, by its request."""
        self._remarks = 0
        self._failing: set[Watch] = set()

    async def run(self) -> None:
        """Watch until cancelled; return at once if there is nothing to watch."""
        provider = spot_provider.detect_provider() if self._spot == "auto" else self._spot
        if provider == "none":
            return
        where = endpoint(provider, self._environ)
        self._agent_log.debug(f"watching {where} for a preemption notice of this machine (--spot {provider})")
        self._unheard.update(WATCHES[provider])
        async with asyncio.TaskGroup() as group:
            for watch in WATCHES[provider]:
                group.create_task(self._follow(watch, where))

    @property
    def held(self) -> str:
        """Why this node does not join yet, "" if no notice prevents it."""
        if not self._enters or not self._standing:
            return ""
        notice, _ = min(self._standing.values(), key=lambda one: one[1])
        return f"{notice.reason}: this node does not join"

    async def wait_clear(self) -> None:
        """Wait until no notice is active: a node of a machine that goes away would cost the others two restarts.

        Exiting would not help: systemd would start the agent again. Raises `MachineTaken` when the time of the notice
        has passed, and no further answer confirms it.
        """
        said_at = None
        while self._standing or (self._unheard and boottime() < self._began + FIRST_S):
            now, until = boottime(), self._began + FIRST_S
            if self._standing:
                watch, (notice, until) = min(self._standing.items(), key=lambda item: item[1][1])
                if now >= until and watch in self._failing:
                    raise MachineTaken(f"{notice.reason}: this node does not join, the job stays open")
                if said_at is None or now >= said_at + HELD_EVERY_S:
                    said_at = now
                    self._agent_log.warning(f"{notice.reason}: this node does not join and waits; the job stays open")
                # While the server answers, its answer counts: the time may be a guess (Google names none).
                line_at = said_at + HELD_EVERY_S
                until = min(until, line_at) if watch in self._failing else line_at
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
            if not heard.error:
                self._remark((watch, path), {*heard.remarks})
            if heard.error or heard.pause_s:
                self._note_error(watch, where, heard.error)
            await asyncio.sleep(heard.pause_s)

    def _note(self, watch: Watch, heard: PollResult) -> None:
        """Note whether there is a notice in the newest answer; the first one counts."""
        if heard.notices:
            first = min(heard.notices, key=lambda notice: notice.left_s)
            self._standing[watch] = first, boottime() + first.left_s
            self._notice(first)
        elif heard.notices is not None:
            self._standing.pop(watch, None)
        if heard.notices is not None or heard.error:
            self._unheard.discard(watch)
            self._changed.set()

    def _notice(self, notice: InterruptionNotice) -> None:
        if self._enters:
            return  # `wait_clear` keeps it from joining.
        deadline = boottime() + notice.left_s
        if self._told is not None and deadline > self._told - EARLIER_S:
            return
        self._told = deadline
        if not self._joins():  # A node that has not joined logs in one line that it does not.
            left_s = notice.left_s - DEADLINE_SPARE_S
            self._agent_log.warning(
                f"{notice.reason}, in {notice.left_s:.0f} s: this node drains; its workers have {left_s:.0f} s"
            )
        self._put(DrainRequested(TRY_AGAIN, notice.reason, deadline))

    def _remark(self, asked: tuple[Watch, str], texts: set[str]) -> None:
        """Log remarks that the previous answer did not have. One that disappears may be logged again later."""
        for text in sorted(texts - self._remarked.get(asked, set())):
            self._remarks += 1
            if self._remarks <= REMARKS_MAX:
                self._agent_log.info(text)
        self._remarked[asked] = texts

    def _note_error(self, watch: Watch, where: MetadataEndpoint, error: str) -> None:
        """Log once that notices may be missed, and once that they no longer are; `auto` may well find nothing."""
        before = bool(self._failing)
        (self._failing.add if error else self._failing.discard)(watch)
        log, may_be_absent = self._agent_log, self._spot == "auto"
        if error and not before:
            tell = log.debug if may_be_absent else log.warning
            tell(f"cannot read preemption notices from {where} ({error}); retrying; training continues")
        elif before and not self._failing:
            tell = log.debug if may_be_absent else log.always
            tell(f"{where} answers again: preemption notices can be read")


async def _answer(where: MetadataEndpoint, ask: MetadataRequest) -> MetadataResponse:
    """Return the answer of a server, with status 0 if it did not answer in time, or not in HTTP."""
    from launcher.spot.http import fetch  # Only a machine of a cloud needs it.

    try:
        async with asyncio.timeout(ask.timeout_s):
            return await fetch(where, ask)
    except OSError:  # TimeoutError is one.
        return MetadataResponse(came_at=time.time())
