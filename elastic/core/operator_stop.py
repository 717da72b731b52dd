"""The rules once an operator has stopped the job: workers save and exit, then the leader writes the verdict (pure).

An operator writes `model.StopOrder`, and only these rules apply from then on. If workers run, an empty generation asks
all of them to finish a common step and to save, as in any planned change. The verdict follows when every member has
recorded its outcome. If the workers can no longer finish a common step, because a member was lost or a worker ended,
the leader writes the verdict at once, and nodes that still have workers stop them fast. A job whose workers have all
ended with exit code 0 by then has completed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from elastic.core.membership.conclusion import completed, completed_before, stopped_by
from elastic.core.membership.decision import ConcludeJob, FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import successor
from elastic.core.membership.rule import Rule
from elastic.core.membership.situation import Situation, Stage
from elastic.core.model import ChangeReason, OutcomeKind
from elastic.core.text import join_names


def returning(s: Situation) -> WaitDecision | None:
    """The leases of members ended, and these members may register again: give them a moment."""
    if not s.returning or s.lost:
        return None
    text = f"{_words(s)}; waiting for {join_names(s.returning)} to register again"
    return s.wait(Reason.RETURNING, text, max(s.returning.values()))


def halted(s: Situation) -> FormGeneration:
    """Publish an empty generation, which makes every member save and stop.

    If some workers have already ended with exit code 0, the others may be about to do so.
    """
    ended = {node for g, node in s.view.outcomes if g == s.current.g}
    going = tuple(node for node in s.nodes if node not in ended)
    empty = successor(s, [], ChangeReason.STOP, _words(s))
    return FormGeneration(Reason.HALTED, _words(s), empty, planned=not ended, unfinished=going)


def stopping(s: Situation) -> WaitDecision | None:
    """Members still save: wait until each has recorded its outcome, while all of them can save together."""
    before = s.previous.nodes if s.previous is not None else ()
    busy = [node for node in before if not s.stopped(node)]
    waited = [node for node in busy if s.here(node) or s.returns_until(node) is not None]
    if not waited or _broken(s, busy, waited):
        return None
    absent = [s.memory.absent_since[node] + 2 * s.spec.lease_ttl_s for node in waited if node in s.memory.absent_since]
    returns = [s.returns_until(node) for node in waited if not s.here(node)]
    whose = "their" if len(waited) > 1 else "its"
    text = f"{_words(s)}; waiting for {join_names(waited)} to stop {whose} workers"
    return s.wait(Reason.STOPPING, text, *absent, *returns)


def stopped(s: Situation) -> ConcludeJob:
    """No worker is left to wait for: the job is stopped."""
    return stopped_by(s, _words(s))


def _broken(s: Situation, busy: Collection[str], waited: Collection[str]) -> bool:
    """Return whether the remaining members cannot save together: a node of a collective or a worker failed."""
    failed = any(end.ended is OutcomeKind.FAILED or end.forced for end in s.previous_outcomes.values())
    return s.spec.one_world and (failed or len(waited) < len(busy))


def _words(s: Situation) -> str:
    return s.stop_order.reason if s.stop_order is not None else ""


STOP: Final[dict[Stage, tuple[Rule, ...]]] = {
    Stage.FIRST_START: (stopped,),
    Stage.RUNNING: (completed, returning, halted),
    Stage.GATE: (completed_before, stopping, stopped),
}
