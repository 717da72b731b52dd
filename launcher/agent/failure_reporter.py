"""Reports each failure of a generation once: with the next start signal or final status, or after a second.

The leader judges a failure when all outcomes are recorded, which takes as long as the slowest old worker needs to
stop. So that users do not wait for that, after a second this node reads the outcomes that are recorded and judges them
by the same rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from elastic.core.agent.core import AgentCore
from elastic.core.kv import KeyRange
from elastic.core.model import Cause, ChangeReason, Outcome, OutcomeKind, Predecessor
from elastic.core.root_cause import root_cause_of
from elastic.core.text import failed_processes_text
from elastic.core.view import StoredDocument
from elastic.core.view_reader import ViewReader
from elastic.errors import StoreError
from elastic.store.protocol import Store
from launcher.logs.logger import AgentLog
from launcher.text import failure_report

PATIENCE_S = 0.8
"""Seconds that the reporter waits for the next start signal or the final status, which names the root cause."""
LISTING_S = 0.2
"""Time limit for reading the outcomes; without them this node reports what it knows itself."""


class FailureReporter:
    """Examines the core after each event. `first` is called with each cause that was reported."""

    def __init__(
        self,
        core: AgentCore,
        store: Store,
        agent_log: AgentLog,
        begin: Callable[[Coroutine[Any, Any, None]], object],
        first: Callable[[Cause], None],
    ) -> None:
        """Take `begin`, which runs a coroutine as a task of this agent."""
        self._core = core
        self._store = store
        self._agent_log = agent_log
        self._begin = begin
        self._first = first
        self._awaited = 0
        self._told_g = 0
        self._early: Cause | None = None
        self._incarnation = core.facts.store.incarnation

    def after_event(self) -> None:
        """Detect a failure that has not been judged yet."""
        if self._core.facts.store.incarnation != self._incarnation:  # Another store counts generations from 1 again.
            self._incarnation = self._core.facts.store.incarnation
            self._awaited = self._told_g = 0
        g = self._failed()
        if g > self._awaited:
            self._awaited = g
            self._begin(self._tell_early(g))

    def judged(self, cause: Cause) -> None:
        """Report a failure that the leader has judged, unless the early report said the same."""
        early, self._early = self._early, None
        self._awaited = max(self._awaited, cause.g)
        if early is None or _named(early) != _named(cause):
            self._report(cause)

    async def _tell_early(self, g: int) -> None:
        """Report what is known about the failure of generation g, unless it is judged within `PATIENCE_S`."""
        await asyncio.sleep(PATIENCE_S)
        if self._is_told(g):
            return
        outcomes = await self._outcomes(g)
        if self._is_told(g):
            return
        before = self._before(g)
        facts = self._core.facts
        spec = facts.view.spec.value if facts.view.spec is not None else facts.me.spec
        cause = root_cause_of(before, outcomes, spec)
        if cause is None:
            return
        if not facts.workers.one_world and facts.generation is not None:
            cause = msgspec.structs.replace(cause, world_size=facts.generation.world_size)
        if not cause.first.secondary:
            self._early = cause
            self._report(cause)
            return
        if before.why is not ChangeReason.FAILURE:
            return  # A node failure or a planned change: why the workers stopped is known.
        over = {node for node, stored in outcomes.items() if stored.value.over}
        missing = [node for node in before.nodes if node not in over]
        self._agent_log.info(
            f"{failed_processes_text([cause.first], cause.host)}; the root cause is not known yet"
            + (f", waiting for {', '.join(missing)}" if missing else "")
        )

    def _failed(self) -> int:
        """Return the newest generation that failed and is not judged, as far as this node knows; 0 if none."""
        facts = self._core.facts
        if facts.registration.joined_at is None or facts.view.verdict is not None:
            return 0
        if not facts.workers.gone and any(worker.code != 0 for worker in facts.workers.own_exits):
            return facts.workers.g
        generation, go = facts.generation, facts.view.go
        if generation is None or generation.before is None or (go is not None and go.value.g >= generation.g):
            return 0
        return generation.before.g if generation.before.why is ChangeReason.FAILURE else 0

    def _is_told(self, g: int) -> bool:
        """Return whether the failure was reported, or a later generation runs and there was nothing to report."""
        go, verdict = self._core.facts.view.go, self._core.facts.view.verdict
        judged = verdict is not None or (go is not None and go.value.g > g)
        return judged or self._told_g >= g

    async def _outcomes(self, g: int) -> dict[str, StoredDocument[Outcome]]:
        """Return the outcomes that nodes have recorded, and that of this node even if it is not recorded yet."""
        facts = self._core.facts
        outcomes: dict[str, StoredDocument[Outcome]] = {}
        revision = 0
        try:
            async with asyncio.timeout(LISTING_S):
                listing = await self._store.list(KeyRange.prefix(facts.keys.outcome(g, "")))
        except (StoreError, TimeoutError) as error:
            why = str(error) or f"etcd did not answer within {LISTING_S:g} s"
            self._agent_log.debug(f"cannot read the outcomes of generation {g}: {why}")
        else:
            revision = listing.revision
            entries = {entry.key: entry for entry in listing.entries}
            view = ViewReader(facts.keys).read(entries, revision, complete=False)
            outcomes = {node: stored for (_, node), stored in view.outcomes.items()}
        wanted, me = facts.workers.outcome_wanted, facts.me.node
        if wanted is not None and wanted[0] == g and wanted[1].ended is OutcomeKind.FAILED and me not in outcomes:
            outcomes[me] = StoredDocument(wanted[1], revision + 1, revision + 1)
        return outcomes

    def _before(self, g: int) -> Predecessor:
        generation = self._core.facts.generation
        if generation is not None and generation.before is not None and generation.before.g == g:
            return generation.before
        nodes = tuple(place.node for place in generation.members) if generation is not None else ()
        return Predecessor(g, nodes, ChangeReason.FAILURE)

    def _report(self, cause: Cause) -> None:
        self._told_g = cause.g
        self._agent_log.report(failure_report.failure_lines(cause))
        self._first(cause)


def _named(cause: Cause) -> tuple[int, str, int, tuple[int, ...], int]:
    """Return the part of a cause that users see: two causes with the same one are reported once."""
    return cause.g, cause.node, cause.first.rank, cause.ranks, len(cause.others)
