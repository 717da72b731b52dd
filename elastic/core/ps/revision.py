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
    """The next revision of a cluster spec, put together rule by rule."""

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
        self.told = RevisionSummary()
        self.until: list[float] = []
        self.waiting = ""

    @property
    def rev(self) -> int:
        """The number of the revision that is being made."""
        return self.cluster_spec.rev + 1

    @property
    def at_work(self) -> int:
        """How many nodes have workers and are not asked to leave."""
        return sum(has_workers(place) and not place.leaving for place in self.places)

    @property
    def room(self) -> int:
        """How many nodes may have workers; none comes once a worker has ended well."""
        if self.finished:
            return 0
        return self.s.spec.np.high if self.layout.separate else UNLIMITED

    def departures(self) -> None:
        """Who is lost, has stopped or has failed."""
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
                self.told.left.append(place)
            elif over and not ended_with(self.ends, place, OutcomeKind.OK):
                ended.append(place)
            else:
                self.places.append(place)
        for place in ended:
            self._restart_place(place)

    def _done(self, place: TaskMember, freed_at: float, *, there: bool) -> None:
        """A node whose workers ended well counts as done whatever becomes of it; its servers may be needed."""
        if there or not has_servers(place):
            self.places.append(place)
        elif self.s.now < freed_at:
            self.places.append(place)
            self.until.append(freed_at)
        else:
            self.places.append(without_servers(place))
            self.told.lost.append(place)

    def _absent(self, place: TaskMember, freed_at: float) -> None:
        """A lost node is out at once; its tasks are free when nothing of it can run any more."""
        if not place.leaving:
            self.told.lost.append(place)
        if self.s.now >= freed_at:
            if place.leaving:
                self.told.freed.append(place)
            return
        self.places.append(msgspec.structs.replace(place, leaving=True))
        self.until.append(freed_at)

    def _restart_place(self, place: TaskMember) -> None:
        """A node whose processes failed or were stopped: its tasks again, when the budget and its pause allow it."""
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
            self.told.failed.append(place)
            if judgement.note:
                self.told.notes.append(judgement.note)
        else:
            self.told.stopped.append(place)
        self.places.append(msgspec.structs.replace(place, since=self.rev))

    def _say_pause(self, place: TaskMember, found: RestartPlan) -> None:
        """Why a node does not start again yet."""
        if found.opens_at == WHEN_A_SERVER_IS_BACK:
            return
        self.until.append(found.opens_at)
        if found.judgement.pause_s:
            fruitless = found.judgement.budget.fruitless
            self.waiting = f"pause of {found.judgement.pause_s:g} s after {fruitless} failures without progress"
        else:
            self.waiting = f"{place.node} ended because it lost a server; waiting whether one is gone"

    def request_departures(self) -> None:
        """Who is asked to leave: nodes that drain, and those above np."""
        if self.finished:
            return
        s = self.s
        for at, place in enumerate(self.places):
            if s.is_draining(place.node) and not place.leaving:
                until = s.memory.draining_since[place.node] + BATCH_S
                if s.now < until:
                    self.until.append(until)
                else:
                    self._ask_to_leave(at, self.told.draining)
                    self.told.reason(drain_reasons_text(s.drain_reasons([place.node])))
        if self.layout.separate:
            at_work = [at for at, place in enumerate(self.places) if has_workers(place) and not place.leaving]
            for at in at_work[s.spec.np.high :]:
                self._ask_to_leave(at, self.told.surplus)

    def _ask_to_leave(self, at: int, told: list[TaskMember]) -> None:
        """Mark a place, unless it is just starting again: then the next revision does."""
        if self.places[at].since != self.rev:
            self.places[at] = msgspec.structs.replace(self.places[at], leaving=True)
            told.append(self.places[at])

    def arrivals(self) -> None:
        """Which nodes get the tasks that are free."""
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
        self.told.joined += given

    def restart_servers(self) -> None:
        """Servers that are needed and whose node has said that everything of it ended well.

        They end by themselves when their workers are done, and workers may start after that. Or the node was away: its
        workers were done, its servers had to stop.
        """
        starts = any(has_workers(place) and place.since == self.rev for place in self.places)
        for at, place in enumerate(self.places):
            end = self.ends.get(place.node)
            if place.leaving or end is None or end.ended is not OutcomeKind.OK or not end.over:
                continue
            again = self._servers_of(place) if starts or not has_servers(place) else None
            if again is not None:
                self.places[at] = again
                self.told.again.append(again)

    def _servers_of(self, place: TaskMember) -> TaskMember | None:
        """A new start of the servers that a node has, or can have; its workers are done."""
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
        """Put the revision together, and say what came out of it."""
        self.departures()
        if self.fatal:
            return failed_by(self.s, self.cluster_spec.g, self.fatal, self.cause)
        self.request_departures()
        self.arrivals()
        self.restart_servers()
        members = in_order(self.places)
        return self._wait() if members == self.cluster_spec.members else self._publish(members)

    def _publish(self, members: tuple[TaskMember, ...]) -> FormGeneration:
        """The next revision, with what must hold for it and what it makes needless."""
        summary = self.told
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
        """Nodes whose recorded outcome is of a start that is over. The outcome of a start that goes on still counts."""
        starts = {member.node: member.since for member in members}
        said = {node for g, node in self.s.view.outcomes if g == self.cluster_spec.g}
        over = [member.node for member in self.cluster_spec.members if starts.get(member.node) != member.since]
        inside = {member.node for member in (*members, *self.cluster_spec.members)}
        # Said late, or did not fit into the revision that took the node out.
        return (*(node for node in over if node in said), *sorted(said - inside))

    def _wait(self) -> WaitDecision:
        """Why nothing is to be revised now."""
        code, text = next(found for rule in WAITS if (found := rule(self)) is not None)
        return self.s.wait(code, text, *self.until)


def _pausing(it: RevisionBuilder) -> tuple[Reason, str] | None:
    return (Reason.BACKOFF, it.waiting) if it.waiting else None


def _server_lost(it: RevisionBuilder) -> tuple[Reason, str] | None:
    away = [place for place in it.places if place.leaving and has_servers(place) and not is_present(it.s, place.node)]
    text = f"{away[0].node} ({tasks_in_words(away[0])}) was lost; its seats are free in a moment" if away else ""
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
"""Why a cluster spec is left as it is, the most telling reason first."""


@dataclass
class RevisionSummary:
    """What happens in a revision, for its reason."""

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
        """Note once why somebody drains, if that was said."""
        if text and text not in self.notes:
            self.notes.append(text)

    def summary(self) -> tuple[Reason, ChangeReason, str]:
        """The weightiest change gives the kind; the sentence names all."""
        changes = [
            (self.failed, Reason.FAILED, ChangeReason.FAILURE, "failed and starts again"),
            (self.lost, Reason.LOST, ChangeReason.LOSS, "was lost"),
            (self.stopped, Reason.STOPPED, ChangeReason.STOPPED, "had to stop and starts again"),
            (self.draining, Reason.DRAINED, ChangeReason.DRAIN, "drains"),
            (self.surplus, Reason.SHRUNK, ChangeReason.SHRINK, "is not needed any more"),
            (self.freed, Reason.LOST, ChangeReason.LOSS, "is gone and its seats are free"),
            (self.left, Reason.DRAINED, ChangeReason.DRAIN, "has left"),
            (self.joined, Reason.GROWN, ChangeReason.GROWTH, "joins"),
            (self.again, Reason.STOPPED, ChangeReason.STOPPED, "had ended and starts again"),
        ]
        parts = [f"{place.node} ({tasks_in_words(place)}) {verb}" for places, _, _, verb in changes for place in places]
        code, why = next(
            ((code, why) for places, code, why, _ in changes if places), (Reason.GROWN, ChangeReason.GROWTH)
        )
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        return code, why, (", ".join(parts) or "the members are put in their order") + notes
