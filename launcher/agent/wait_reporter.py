"""What this node waits for, in words: said at once when it changes, and every 10 s while nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from elastic.core.agent.core import AgentCore
from elastic.core.agent.state import Phase
from elastic.core.decide import decide
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.membership.decision import Reason, WaitDecision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.quarantine import presumed_linked
from elastic.core.view import ViewReader
from elastic.errors import StoreError
from elastic.store.protocol import Store
from launcher.job.absent_nodes import ASKED, absent_nodes, words
from launcher.logs.logger import AgentLog
from launcher.peers.reachability import check_reachable

FIRST_S = 1.0
EVERY_S = 10.0
SPARE_EVERY_S = 60.0
REACHED_MAX = 64
"""The first in line tries to reach so many others each time that it says what it waits for."""

WAITING = (Phase.JOINING, Phase.SPARE, Phase.GATED, Phase.DONE)
AT_WORK = (Reason.TRAINING, Reason.FINISHING)
"""A world runs; who is not in it is a spare."""
SAID_AT_ONCE = (Reason.MISSING, Reason.BELOW_MIN, Reason.UNPROVEN, Reason.BACKOFF, Reason.UNREADABLE, Reason.NO_SPEC)


class WaitReporter:
    """Looks at the core, and at the store when another node is the one that decides."""

    def __init__(
        self, core: AgentCore, store: Store, keys: JobKeys, agent_log: AgentLog, clock: Callable[[], float]
    ) -> None:
        self._core = core
        self._store = store
        self._reader = ViewReader(keys)
        self._keys = keys
        self._agent_log = agent_log
        self._clock = clock
        self._memory = DecisionMemory()
        self._code: Reason | None = None
        self._said = self._last = self._newest = ""
        self._since: float | None = None
        """Since when this node waits; a world that ran for a moment only counts, too."""

    @property
    def last_reason(self) -> str:
        """What it said last of what this node waits for, "" if it waits for nothing."""
        return self._last if self._since is not None else ""

    @property
    def sentence(self) -> str:
        """What this node waits for as far as is known now, "" if it does not wait. Nobody is asked for it."""
        if self._core.phase not in WAITING:
            return ""
        decision = self._core.facts.succession.decision
        if not isinstance(decision, WaitDecision) or self._old_news(decision.code):
            return self._newest
        asked = decision.code in ASKED
        return decision.reason + (words(absent_nodes(self._core.facts.view)) if asked else "")

    def after_event(self) -> None:
        """Say what the proposer waits for, as soon as that becomes something else."""
        self._note_time()
        decision = self._core.facts.succession.decision
        code = decision.code if decision is not None else None
        if code is not self._code:
            self._code = code
            if isinstance(decision, WaitDecision):
                if code in SAID_AT_ONCE and not self._leaves(code):
                    who = words(absent_nodes(self._core.facts.view)) if code in ASKED else ""
                    self._said = self._last = decision.reason + who
                    self._agent_log.info(self._said)
                else:
                    self._agent_log.debug(f"proposer: {decision.reason}")

    async def run(self) -> None:
        """Every 10 s, while this node has no work, say why, and for how long that has been so."""
        pause = FIRST_S
        while True:
            await asyncio.sleep(pause)
            pause = EVERY_S
            since = self._note_time()
            if since is not None:
                code, reason = await self._reason()
                self._newest = reason
                if code in AT_WORK:
                    pause = SPARE_EVERY_S
                if reason and self._core.phase in WAITING and not self._leaves(code):
                    spare = code in AT_WORK and self._core.phase is Phase.SPARE
                    waited_s = self._clock() - since
                    so_far = f" ({waited_s:.0f} s so far)" if waited_s >= EVERY_S / 2 else ""
                    text = f"{'spare: ' if spare else ''}{reason}{so_far}"
                    self._last = f"{'spare: ' if spare else ''}{reason}"
                    if text != self._said:  # It was said in this moment, when it became so.
                        self._agent_log.info(text)
                    self._said = ""

    def _note_time(self) -> float | None:
        """Since when this node waits, None while it does not."""
        if self._core.phase not in WAITING:
            self._since, self._newest = None, ""
        elif self._since is None:
            self._since = self._clock()
        return self._since

    def _old_news(self, code: Reason | None) -> bool:
        """Tell whether this is the last word before etcd fell silent: a world runs, and this node has no work."""
        return code is Reason.TRAINING and self._core.phase is Phase.DONE

    def _leaves(self, code: Reason | None) -> bool:
        """Tell whether this node leaves, so that it does not wait for other nodes."""
        return code in ASKED and self._core.facts.leaving.drain is not None

    async def _reason(self) -> tuple[Reason | None, str]:
        facts = self._core.facts
        if not facts.registration.prepared:
            return None, "this node loads torch for its workers"
        if facts.succession.decision is not None:
            code, reason = facts.succession.decision.code, facts.succession.decision.reason
            if not isinstance(facts.succession.decision, WaitDecision) or self._old_news(code):
                return None, await self._silence()
            if code in ASKED:
                reason += words(absent_nodes(facts.view, await self._unreached()))
            return code, reason
        try:
            listing = await self._store.list(self._keys.everything[0])
        except StoreError as error:
            return None, f"etcd does not answer ({error})"
        entries = {entry.key: entry for entry in listing.entries}
        view = self._reader.read(entries, listing.revision, complete=True, follows=None)
        memory = replace(self._memory, linked=presumed_linked(view))  # Whom the proposer is linked to, only it knows.
        policy = replace(facts.policy, node="")  # It is not this node that proposes.
        decision, self._memory = decide(view, memory, policy, self._clock())
        if not isinstance(decision, WaitDecision):
            first = (facts.succession.following or (False, None))[1] or "the first in line"
            return decision.code, f"waiting for {first} to act: {decision.reason}"
        return decision.code, decision.reason + (words(absent_nodes(view)) if decision.code in ASKED else "")

    async def _silence(self) -> str:
        """What keeps this node from what it has decided, or from hearing what comes next; "" if etcd answers."""
        try:
            await self._store.list(KeyRange.key(self._keys.spec), keys_only=True)
        except StoreError as error:
            return f"etcd does not answer ({error})"
        return ""

    async def _unreached(self) -> dict[str, str]:
        """Nodes that are registered and do not answer this one, and why; of a large job only some are asked."""
        facts = self._core.facts
        others = [(node, stored.value) for node, stored in facts.view.members.items() if node != facts.me.node]
        found = await check_reachable(self._keys.job_id, dict(others[:REACHED_MAX]))
        return {one.node: one.why for one in found.unreached}
