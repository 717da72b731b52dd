"""Logs what this node waits for: at each change, and every 10 s while nothing happens.

The leader logs its own decision. Another node logs what the leader has sent it (`launcher.agent.wait_teller`), or, if
the leader sent nothing, what the node knows itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastic.core.agent.core import AgentCore
from elastic.core.agent.state import Phase
from elastic.core.decide import PRECONDITIONS
from elastic.core.kv import KeyRange
from elastic.core.membership.decision import Reason, WaitDecision
from elastic.errors import StoreError
from elastic.store.protocol import Store
from launcher.job.absent_nodes import ASKED, absent_nodes, words
from launcher.logs.logger import AgentLog
from launcher.peers.core_adapter import HeardWait
from launcher.peers.reachability import check_reachable
from launcher.system.time_limit import wait_at_most

FIRST_S = 1.0
EVERY_S = 10.0
SPARE_EVERY_S = 60.0
WORD_S = 3.0
"""Seconds after the start of a wait within which the leader sends its reason, if at all."""
REACHED_MAX = 64
"""Nodes that the leader tries to reach for each report."""

WAITING = (Phase.JOINING, Phase.SPARE, Phase.GATED, Phase.DONE)
AT_WORK = (Reason.TRAINING, Reason.FINISHING)
"""Workers run; a node without workers is a spare."""
SAID_AT_ONCE = (Reason.MISSING, Reason.BELOW_MIN, Reason.UNPROVEN, Reason.BACKOFF, Reason.UNREADABLE, Reason.NO_SPEC)


class WaitReporter:
    """Reports the wait of one node, from its core and from what the leader has sent it."""

    def __init__(
        self,
        core: AgentCore,
        store: Store,
        agent_log: AgentLog,
        clock: Callable[[], float],
        heard: Callable[[], HeardWait | None],
    ) -> None:
        """Take `heard`, which returns what the leader has sent this node, None if that no longer applies."""
        self._core = core
        self._store = store
        self._agent_log = agent_log
        self._clock = clock
        self._heard = heard
        self._heard_code: Reason | None = None
        self._news = asyncio.Event()
        self._code: Reason | None = None
        self._said = self._newest = ""
        self._since: float | None = None
        """When this node began to wait; any run of its workers, however short, restarts the wait."""

    @property
    def sentence(self) -> str:
        """Return what this node waits for as far as it knows, "" if it does not wait. Sends no request."""
        if self._core.phase not in WAITING:
            return ""
        decision, heard, now = self._core.facts.succession.decision, self._heard(), self._clock()
        if decision is None and heard is not None:
            return heard.reason_at(now)
        if not isinstance(decision, WaitDecision) or self._old_news(decision.code):
            return self._newest
        asked = decision.code in ASKED
        return decision.reason_at(now) + (words(absent_nodes(self._core.facts.view)) if asked else "")

    def after_event(self) -> None:
        """Log what this node waits for if it is the leader and that has changed."""
        self._note_time()
        decision = self._core.facts.succession.decision
        code = decision.code if decision is not None else None
        if code is not self._code:
            self._code = code
            if isinstance(decision, WaitDecision):
                if code in SAID_AT_ONCE and not self._leaves(code):
                    who = words(absent_nodes(self._core.facts.view)) if code in ASKED else ""
                    self._said = decision.reason + who
                    self._agent_log.info(self._said)
                else:
                    self._agent_log.debug(f"leader: {decision.reason}")

    def on_heard(self) -> None:
        """Log soon what the leader has sent this node, if it waits for something else now."""
        heard = self._heard()
        code = heard.code if heard is not None else None
        if code != self._heard_code:
            self._heard_code = code
            self._news.set()

    async def run(self) -> None:
        """Log, while this node has no work, the reason and the duration so far."""
        pause = FIRST_S
        while True:
            await wait_at_most(pause, self._news.wait())
            self._news.clear()
            since = self._note_time()
            pause = EVERY_S if since is None else await self._report(since)

    async def _report(self, since: float) -> float:
        """Log what this node waits for; return the seconds until the next report."""
        code, reason = await self._reason(since)
        self._newest = reason
        waited_s = self._clock() - since
        if reason and self._core.phase in WAITING and not self._leaves(code):
            spare = code in AT_WORK and self._core.phase is Phase.SPARE
            so_far = f" ({waited_s:.0f} s so far)" if waited_s >= EVERY_S / 2 else ""
            text = f"{'spare: ' if spare else ''}{reason}{so_far}"
            if text != self._said:  # `after_event` has just logged it.
                self._agent_log.info(text)
            self._said = ""
        if not reason and waited_s < WORD_S:
            return FIRST_S
        return SPARE_EVERY_S if code in AT_WORK else EVERY_S

    def _note_time(self) -> float | None:
        """Return when this node began to wait, None while it does not."""
        if self._core.phase not in WAITING:
            self._since, self._newest = None, ""
        elif self._since is None:
            self._since = self._clock()
        return self._since

    def _old_news(self, code: Reason | None) -> bool:
        """Return whether this decision is outdated: it says that workers run, but those of this node have ended."""
        return code is Reason.TRAINING and self._core.phase is Phase.DONE

    def _leaves(self, code: Reason | None) -> bool:
        """Return whether this node is leaving, and therefore does not wait for other nodes."""
        return code in ASKED and self._core.facts.leaving.drain is not None

    async def _reason(self, since: float) -> tuple[Reason | None, str]:
        """Return what this node waits for, and the code of the leader's reason if there is one."""
        facts = self._core.facts
        if not facts.registration.prepared:
            return None, "importing torch for workers"
        decision = facts.succession.decision
        if isinstance(decision, WaitDecision) and not self._old_news(decision.code):
            reason = decision.reason_at(self._clock())
            if decision.code in ASKED:
                reason += words(absent_nodes(facts.view, await self._unreached()))
            return decision.code, reason
        try:  # Without etcd no decision takes effect, and no news arrives.
            await self._store.list(KeyRange.key(facts.keys.spec), keys_only=True)
        except StoreError as error:
            return None, f"etcd does not answer ({error})"
        return (None, "") if decision is not None else self._told(since)

    def _told(self, since: float) -> tuple[Reason | None, str]:
        """Return what a node that is not the leader waits for, from the documents or the leader's message."""
        facts, heard, now = self._core.facts, self._heard(), self._clock()
        if facts.store.looks:
            for precondition in PRECONDITIONS:
                if (wait := precondition(facts.view)) is not None:
                    return wait.code, wait.reason
        if heard is not None:
            return (None, "") if self._old_news(heard.code) else (heard.code, heard.reason_at(now))
        if now < since + WORD_S:
            return None, ""
        if not facts.registration.registered:
            return None, "this node is not registered yet"
        leader = f" {facts.view.leader.value.node}" if facts.view.leader is not None else ""
        return None, f"waiting for the leader{leader}, which has not sent the reason yet"

    async def _unreached(self) -> dict[str, str]:
        """Return the registered nodes that do not answer this one, and why; in a large job only some are tried."""
        facts = self._core.facts
        others = [(node, stored.value) for node, stored in facts.view.members.items() if node != facts.me.node]
        found = await check_reachable(facts.keys.job_id, dict(others[:REACHED_MAX]))
        return {one.node: one.why for one in found.unreached}
