"""One revision of a cluster spec, built rule by rule (pure); `elastic.core.ps.cluster_spec` lists and numbers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from elastic.core.membership.conclusion import failed_by
from elastic.core.membership.decision import Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.evictions import listed_evictions
from elastic.core.membership.next_generation import strip_unused_ports, unlinked_members
from elastic.core.membership.situation import BATCH_S, Situation
from elastic.core.model import Cause, ChangeReason, OutcomeKind
from elastic.core.ps.model import ClusterSpec, Role, TaskMember
from elastic.core.ps.presence import (
    UNLIMITED,
    candidates_outside,
    current_outcomes,
    ended_with,
    is_present,
    layout_of,
    newest,
    tasks_free_at,
)
from elastic.core.ps.restart import WHEN_A_SERVER_IS_BACK, RestartPlan, TaskFailure, restart
from elastic.core.ps.task_placement import (
    assign,
    fixed_tasks,
    has_servers,
    has_workers,
    in_order,
    vacant_servers,
    without_servers,
)
from elastic.core.ps.text import in_words, servers_in_words, tasks_in_words
from elastic.core.text import drain_reasons_text


class RevisionBuilder:
    """Builds the next revision of a cluster spec, rule by rule."""

    def __init__(self, s: Situation) -> None:
        self.s, self.layout, self.cluster_spec = s, layout_of(s), newest(s)
        self.ends = current_outcomes(s)
        self.finished = {
            member.node
            for member in self.cluster_spec.members
            if has_workers(member) and not member.leaving and ended_with(self.ends, member, OutcomeKind.OK)
        }
        self.places: list[TaskMember] = []
        self.budget, self.fatal = self.cluster_spec.budget, ""
        self.cause: Cause | None = None
        self.changes = RevisionSummary()
        self.until: list[float] = []
        self.waiting = ""

    @property
    def rev(self) -> int:
        """The number of the revision that is being built."""
        return self.cluster_spec.rev + 1

    @property
    def at_work(self) -> int:
        """The number of nodes that have workers and are not asked to leave."""
        return sum(has_workers(place) and not place.leaving for place in self.places)

    @property
    def room(self) -> int:
        """The number of nodes that may have workers; 0 once a worker has ended well, so that no node joins."""
        if self.finished:
            return 0
        return self.s.spec.np.high if self.layout.separate else UNLIMITED

    def departures(self) -> None:
        """Handle the members that are lost, have stopped or have failed."""
        ended = []
        for place in self.cluster_spec.members:
            end, there = self.ends.get(place.node), is_present(self.s, place.node)
            over = end is not None and end.over
            freed_at = self.s.now if there or over else tasks_free_at(self.s, place.node)
            if place.node in self.finished:
                self._done(place, freed_at, there=there)
            elif not there:
                self._absent(place, freed_at)
            elif over and (
                place.leaving or (self.s.is_draining(place.node) and not ended_with(self.ends, place, OutcomeKind.OK))
            ):
                self.changes.left.append(place)
            elif over and not ended_with(self.ends, place, OutcomeKind.OK):
                ended.append(place)
            else:
                self.places.append(place)
        for place in ended:
            self._restart_place(place)

    def _done(self, place: TaskMember, freed_at: float, *, there: bool) -> None:
        """Keep a node whose workers ended well, even if it is gone; free its servers then."""
        if there or not has_servers(place):
            self.places.append(place)
        elif self.s.now < freed_at:
            self.places.append(place)
            self.until.append(freed_at)
        else:
            self.places.append(without_servers(place))
            self.changes.lost.append(place)

    def _absent(self, place: TaskMember, freed_at: float) -> None:
        """Mark a lost node as leaving; free its tasks when none of its processes can run any more."""
        if not place.leaving:
            self.changes.lost.append(place)
        if self.s.now >= freed_at:
            if place.leaving:
                self.changes.freed.append(place)
            return
        self.places.append(msgspec.structs.replace(place, leaving=True))
        self.until.append(freed_at)

    def _restart_place(self, place: TaskMember) -> None:
        """Start the tasks of a failed or stopped node again when the budget and the back-off allow it."""
        s, g = self.s, self.cluster_spec.g
        stored = s.view.outcomes[g, place.node]
        if stored.value.ended is OutcomeKind.FAILED:
            plan = restart(TaskFailure(s, self.layout, self.cluster_spec, place, self.budget))
            judgement = plan.judgement
            cause = judgement.cause
            if cause is not None:
                cause = msgspec.structs.replace(cause, world_size=self.cluster_spec.world_size)
            if judgement.fatal:
                self.fatal, self.cause = judgement.fatal, cause
                return
            if s.now < plan.opens_at:
                self.places.append(place)
                self._say_pause(place, plan)
                return
            self.budget, self.cause = judgement.budget, self.cause or cause
            self.changes.failed.append(place)
            if judgement.note:
                self.changes.notes.append(judgement.note)
        else:
            self.changes.stopped.append(place)
        self.places.append(msgspec.structs.replace(place, since=self.rev))

    def _say_pause(self, place: TaskMember, plan: RestartPlan) -> None:
        """Note why a node does not start again yet."""
        if plan.opens_at == WHEN_A_SERVER_IS_BACK:
            return
        self.until.append(plan.opens_at)
        if plan.judgement.pause_s:
            consecutive_failures = plan.judgement.budget.consecutive_failures
            self.waiting = (
                f"backing off {plan.judgement.pause_s:g} s "
                f"after {consecutive_failures} consecutive failures without progress"
            )
        else:
            self.waiting = f"{place.node} ended because it lost a server; waiting to see which server is gone"

    def request_departures(self) -> None:
        """Ask nodes to leave that drain or exceed np's maximum."""
        if self.finished:
            return
        s = self.s
        for at, place in enumerate(self.places):
            if s.is_draining(place.node) and not place.leaving:
                until = s.memory.draining_since[place.node] + BATCH_S
                if s.now < until:
                    self.until.append(until)
                else:
                    self._ask_to_leave(at, self.changes.draining)
                    self.changes.reason(drain_reasons_text(s.drain_reasons([place.node])))
        if self.layout.separate:
            at_work = [at for at, place in enumerate(self.places) if has_workers(place) and not place.leaving]
            for at in at_work[s.spec.np.high :]:
                self._ask_to_leave(at, self.changes.surplus)

    def _ask_to_leave(self, at: int, listed: list[TaskMember]) -> None:
        """Mark a member as leaving, unless this revision starts it again; then the next revision marks it."""
        if self.places[at].since != self.rev:
            self.places[at] = msgspec.structs.replace(self.places[at], leaving=True)
            listed.append(self.places[at])

    def arrivals(self) -> None:
        """Assign the free tasks to nodes."""
        s = self.s
        inside = frozenset(place.node for place in (*self.places, *self.cluster_spec.members))
        candidates = candidates_outside(s, inside)
        given = assign(self.layout, self.places, candidates, self.room, self.rev)
        given = [place for place in given if has_servers(place) or not self.finished]
        fresh = [place for place in given if not has_servers(place)]
        if fresh:
            until = max(s.memory.ready_since[place.node] for place in fresh) + BATCH_S
            if s.now < until:
                self.until.append(until)
                given = [place for place in given if has_servers(place)]
        self.places += given
        self.changes.joined += given

    def restart_servers(self) -> None:
        """Start servers again that are needed and whose node has recorded that all its processes ended well.

        Servers exit when their workers have finished, and other workers may start after that. Or the node was away: its
        workers had finished, and its servers had to stop.
        """
        starts = any(has_workers(place) and place.since == self.rev for place in self.places)
        for at, place in enumerate(self.places):
            end = self.ends.get(place.node)
            if place.leaving or end is None or end.ended is not OutcomeKind.OK or not end.over:
                continue
            again = self._servers_of(place) if starts or not has_servers(place) else None
            if again is not None:
                self.places[at] = again
                self.changes.again.append(again)

    def _servers_of(self, place: TaskMember) -> TaskMember | None:
        """Return a new start of the servers that a node has or can have; its workers have finished."""
        stored = self.s.view.members.get(place.node)
        if stored is None or not has_workers(place):
            return msgspec.structs.replace(place, since=self.rev) if stored is not None else None
        others = {task for other in self.places if other is not place for task in other.tasks}
        member, own = stored.value, enumerate(fixed_tasks(self.layout, place.host))
        pairs = [(task, at) for at, task in own if task.role is Role.SERVER and task not in others]
        pairs = [(task, at) for task, at in pairs if at < len(member.ports)]
        if not pairs or self.layout.separate:
            return None
        ports, tasks = tuple(member.ports[at] for _, at in pairs), tuple(task for task, _ in pairs)
        return TaskMember(place.node, place.host, member.masters, ports, tasks, self.rev)

    def decision(self) -> Decision:
        """Build the revision, and return the decision."""
        self.departures()
        if self.fatal:
            return failed_by(self.s, self.cluster_spec.g, self.fatal, self.cause)
        self.request_departures()
        self.arrivals()
        self.restart_servers()
        members = in_order(self.places)
        return self._wait() if members == self.cluster_spec.members else self._publish(members)

    def _publish(self, members: tuple[TaskMember, ...]) -> FormGeneration:
        """Publish the next revision, with its conditions and the outcomes that it makes obsolete."""
        summary = self.changes
        code, why, reason = summary.summary()
        planned = bool(summary.joined or summary.draining or summary.surplus)
        old = self.cluster_spec.members if planned else ()
        at_work = [member.node for member in old if has_workers(member) and member.node not in self.ends]
        lost = [member.node for member in summary.lost]
        return FormGeneration(
            code,
            reason,
            self._revision(members, why, reason),
            lost=tuple(node for node in lost if node not in self.ends),
            forget=self._outdated_outcomes(members),
            unfinished=tuple(node for node in at_work if is_present(self.s, node)),
            gone=(*(member.node for member in summary.freed), *(node for node in lost if node in self.ends)),
        )

    def _revision(self, members: tuple[TaskMember, ...], why: ChangeReason, reason: str) -> ClusterSpec:
        return msgspec.structs.replace(
            self.cluster_spec,
            leader=self.s.policy.node,
            why=why,
            reason=reason,
            members=strip_unused_ports(members),
            slots=self.s.spec.slots,
            budget=self.budget,
            rev=self.rev,
            cause=self.cause,
            distrusted=(),
            evicted=listed_evictions(self.s.memory.evictions, self.s.now),
            unlinked=unlinked_members(self.s, members),
        )

    def _outdated_outcomes(self, members: Collection[TaskMember]) -> tuple[str, ...]:
        """The nodes whose recorded outcome belongs to a start that is over; outcomes of other starts still count."""
        starts = {member.node: member.since for member in members}
        said = {node for g, node in self.s.view.outcomes if g == self.cluster_spec.g}
        over = [member.node for member in self.cluster_spec.members if starts.get(member.node) != member.since]
        inside = {member.node for member in (*members, *self.cluster_spec.members)}
        # Recorded late, or beyond the limit of the revision that removed the node.
        return (*(node for node in over if node in said), *sorted(said - inside))

    def _wait(self) -> WaitDecision:
        """Wait, with the reason why there is nothing to revise now."""
        code, text = next(found for rule in WAITS if (found := rule(self)) is not None)
        return self.s.wait(code, text, *self.until)


def _pausing(it: RevisionBuilder) -> tuple[Reason, str] | None:
    return (Reason.BACKOFF, it.waiting) if it.waiting else None


def _server_lost(it: RevisionBuilder) -> tuple[Reason, str] | None:
    away = [place for place in it.places if place.leaving and has_servers(place) and not is_present(it.s, place.node)]
    text = f"{away[0].node} ({tasks_in_words(away[0])}) was lost; its tasks are free in a moment" if away else ""
    return (Reason.VACANT, text) if away else None


def _server_missing(it: RevisionBuilder) -> tuple[Reason, str] | None:
    vacant = vacant_servers(it.layout, it.places)
    return (Reason.VACANT, f"the workers wait for {servers_in_words(it.layout, vacant)}") if vacant else None


def _finishing(it: RevisionBuilder) -> tuple[Reason, str] | None:
    text = f"{len(it.finished)} of {it.at_work} nodes done; waiting for the others"
    return (Reason.FINISHING, text) if it.finished else None


def _no_worker(it: RevisionBuilder) -> tuple[Reason, str] | None:
    return None if it.at_work else (Reason.VACANT, "no worker is left; waiting for nodes")


def _training(it: RevisionBuilder) -> tuple[Reason, str]:
    spares = len(candidates_outside(it.s, frozenset(place.node for place in it.places)))
    text = f"training with {in_words(it.layout, it.places)}"
    return Reason.TRAINING, text + (f", {spares} spare" if spares else "")


WAITS: Final[Sequence[Callable[[RevisionBuilder], tuple[Reason, str] | None]]] = (
    _pausing, _server_lost, _server_missing, _finishing, _no_worker, _training,
)  # fmt: skip
"""The reasons to leave a cluster spec unchanged, the most informative one first."""


@dataclass
class RevisionSummary:
    """The changes of a revision, for its reason."""

    lost: list[TaskMember] = field(default_factory=list)
    freed: list[TaskMember] = field(default_factory=list)
    left: list[TaskMember] = field(default_factory=list)
    failed: list[TaskMember] = field(default_factory=list)
    stopped: list[TaskMember] = field(default_factory=list)
    draining: list[TaskMember] = field(default_factory=list)
    surplus: list[TaskMember] = field(default_factory=list)
    joined: list[TaskMember] = field(default_factory=list)
    again: list[TaskMember] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def reason(self, text: str) -> None:
        """Add the reason of a drain once, if there is one."""
        if text and text not in self.notes:
            self.notes.append(text)

    def summary(self) -> tuple[Reason, ChangeReason, str]:
        """Return the most important kind of change, and a sentence that lists all changes."""
        changes = [
            (self.failed, Reason.FAILED, ChangeReason.FAILURE, "failed and starts again"),
            (self.lost, Reason.LOST, ChangeReason.NODE_LOST, "was lost"),
            (self.stopped, Reason.STOPPED, ChangeReason.STOPPED, "had to stop and starts again"),
            (self.draining, Reason.DRAINED, ChangeReason.DRAIN, "drains"),
            (self.surplus, Reason.SCALED_DOWN, ChangeReason.SCALE_DOWN, "is not needed any more"),
            (self.freed, Reason.LOST, ChangeReason.NODE_LOST, "is gone and its tasks are free"),
            (self.left, Reason.DRAINED, ChangeReason.DRAIN, "has left"),
            (self.joined, Reason.SCALED_UP, ChangeReason.SCALE_UP, "joins"),
            (self.again, Reason.STOPPED, ChangeReason.STOPPED, "had ended and starts again"),
        ]
        parts = [f"{place.node} ({tasks_in_words(place)}) {verb}" for places, _, _, verb in changes for place in places]
        code, why = next(
            ((code, why) for places, code, why, _ in changes if places), (Reason.SCALED_UP, ChangeReason.SCALE_UP)
        )
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        return code, why, (", ".join(parts) or "the members are sorted by their tasks") + notes
