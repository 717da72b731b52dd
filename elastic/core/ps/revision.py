"""One revision of a cluster spec, built rule by rule (pure); `elastic.core.ps.cluster_spec` lists and numbers them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from elastic.core.membership.decision import ConcludeJob, Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import drain_reasons, strip_unused_ports
from elastic.core.membership.situation import BATCH_S, Situation, earliest
from elastic.core.model import (
    Cause,
    ChangeReason,
    FinalStatus,
    Generation,
    GenerationMember,
    Outcome,
    OutcomeKind,
    PsLayout,
    Role,
    Verdict,
)
from elastic.core.ps.restart import WHEN_A_SERVER_IS_BACK, RestartPlan, restart
from elastic.core.ps.task_placement import (
    Candidate,
    assign,
    fixed_tasks,
    has_servers,
    has_workers,
    in_order,
    vacant_servers,
    without_servers,
)
from elastic.core.ps.text import in_words, servers_in_words, tasks_in_words
from elastic.core.run_deadline import CLOCK_ERROR

UNLIMITED = 1 << 30


def is_present(q: Situation, node: str) -> bool:
    """Tell whether a node is registered, and not certainly dead."""
    return node in q.view.members and node not in q.memory.dead


def tasks_free_at(q: Situation, node: str) -> float:
    """When a node that is not registered has certainly no process left."""
    if node in q.memory.dead:
        return q.now
    return q.memory.absent_since.get(node, q.now) + q.spec.lease_ttl_s * (1 + CLOCK_ERROR) + q.policy.kill_s


def current_outcomes(q: Situation, generation: Generation) -> dict[str, Outcome]:
    """How the present starts of the roster's nodes ended; what older starts said does not count."""
    found = {}
    for place in generation.members:
        end = q.outcome(generation.g, place.node)
        if end is not None and end.since == place.since:
            found[place.node] = end
    return found


def ended_with(ends: Mapping[str, Outcome], place: GenerationMember, how: OutcomeKind) -> bool:
    """Tell whether the present start of a node ended so."""
    end = ends.get(place.node)
    return end is not None and end.ended is how


def candidates_outside(q: Situation, inside: frozenset[str], stay: Collection[str] = ()) -> list[Candidate]:
    """Registered nodes outside the roster that are ready, and those of it that `stay`, the oldest first."""
    found = []
    for node in (*q.memory.ready_since, *stay):
        stored = q.member(node)
        if stored is not None and node not in inside:
            found.append((stored.create_revision, node, stored.value))
    return [(node, member) for _, node, member in sorted(found, key=lambda one: one[:2])]


class RevisionBuilder:
    """The next revision of a roster, put together rule by rule."""

    def __init__(
        self, q: Situation, roles: PsLayout, generation: Generation, ends: dict[str, Outcome], finished: set[str]
    ) -> None:
        self.q, self.roles, self.generation = q, roles, generation
        self.ends, self.finished = ends, finished
        self.places: list[GenerationMember] = []
        self.budget, self.fatal = generation.budget, ""
        self.cause: Cause | None = None
        self.told = RevisionSummary()
        self.until: list[float] = []
        self.waiting = ""

    @property
    def rev(self) -> int:
        """The number of the revision that is being made."""
        return self.generation.rev + 1

    def departures(self) -> None:
        """Who is lost, has stopped or has failed."""
        ended = []
        for place in self.generation.members:
            end, there = self.ends.get(place.node), is_present(self.q, place.node)
            over = end is not None and end.over
            freed_at = self.q.now if there or over else tasks_free_at(self.q, place.node)
            if place.node in self.finished:
                self._done(place, freed_at, there=there)
            elif not there:
                self._absent(place, freed_at)
            elif over and (
                place.leaving or (self.q.draining(place.node) and not ended_with(self.ends, place, OutcomeKind.OK))
            ):
                self.told.left.append(place)
            elif over and not ended_with(self.ends, place, OutcomeKind.OK):
                ended.append(place)
            else:
                self.places.append(place)
        for place in ended:
            self._restart_place(place)

    def _done(self, place: GenerationMember, freed_at: float, *, there: bool) -> None:
        """A node whose workers ended well counts as done whatever becomes of it; its servers may be needed."""
        if there or not has_servers(place):
            self.places.append(place)
        elif self.q.now < freed_at:
            self.places.append(place)
            self.until.append(freed_at)
        else:
            self.places.append(without_servers(place))
            self.told.lost.append(place)

    def _absent(self, place: GenerationMember, freed_at: float) -> None:
        """A lost node is out at once; its seats are free when nothing of it can run any more."""
        if not place.leaving:
            self.told.lost.append(place)
        if self.q.now >= freed_at:
            if place.leaving:
                self.told.freed.append(place)
            return
        self.places.append(msgspec.structs.replace(place, leaving=True))
        self.until.append(freed_at)

    def _restart_place(self, place: GenerationMember) -> None:
        """A node whose processes failed or were stopped: its seats again, when the budget and its pause allow it."""
        q, g = self.q, self.generation.g
        stored = q.view.outcomes[g, place.node]
        if stored.value.ended is OutcomeKind.FAILED:
            plan = restart(q, self.roles, self.generation, place, self.budget, lambda node: is_present(q, node))
            judgement = plan.judgement
            cause = judgement.cause
            if cause is not None:
                cause = msgspec.structs.replace(cause, world_size=self.generation.world_size)
            if judgement.fatal:
                self.fatal, self.cause = judgement.fatal, cause
                return
            if q.now < plan.opens_at:
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

    def _say_pause(self, place: GenerationMember, found: RestartPlan) -> None:
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
        q = self.q
        for at, place in enumerate(self.places):
            if q.draining(place.node) and not place.leaving:
                until = q.memory.draining_since[place.node] + BATCH_S
                if q.now < until:
                    self.until.append(until)
                else:
                    self._ask_to_leave(at, self.told.draining)
                    self.told.reason(drain_reasons(q, [place.node]))
        if self.roles.separate:
            at_work = [at for at, place in enumerate(self.places) if has_workers(place) and not place.leaving]
            for at in at_work[q.spec.np.high :]:
                self._ask_to_leave(at, self.told.surplus)

    def _ask_to_leave(self, at: int, told: list[GenerationMember]) -> None:
        """Mark a place, unless it is just starting again: then the next revision does."""
        if self.places[at].since != self.rev:
            self.places[at] = msgspec.structs.replace(self.places[at], leaving=True)
            told.append(self.places[at])

    def arrivals(self) -> None:
        """Who gets the seats that are free."""
        q = self.q
        inside = frozenset(place.node for place in (*self.places, *self.generation.members))
        candidates = candidates_outside(q, inside)
        room = q.spec.np.high if self.roles.separate else UNLIMITED
        if self.finished:
            room = 0
        given = [place for place in assign(self.roles, self.places, candidates, room, self.rev) if self._welcome(place)]
        fresh = [place for place in given if not has_servers(place)]
        if fresh:
            until = max(q.memory.ready_since[place.node] for place in fresh) + BATCH_S
            if q.now < until:
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

    def _servers_of(self, place: GenerationMember) -> GenerationMember | None:
        """A new start of the servers that a node has, or can have; its workers are done."""
        stored = self.q.view.members.get(place.node)
        if stored is None or not has_workers(place):
            return msgspec.structs.replace(place, since=self.rev) if stored is not None else None
        others = {task for other in self.places if other is not place for task in other.tasks}
        member, own = stored.value, enumerate(fixed_tasks(self.roles, place.host))
        pairs = [(task, at) for at, task in own if task.role is Role.SERVER and task not in others]
        pairs = [(task, at) for task, at in pairs if at < len(member.ports)]
        if not pairs or self.roles.separate:
            return None
        ports, tasks = tuple(member.ports[at] for _, at in pairs), tuple(task for task, _ in pairs)
        return GenerationMember(place.node, place.host, member.masters, ports, tasks, self.rev)

    def _welcome(self, place: GenerationMember) -> bool:
        return has_servers(place) or not self.finished

    def decision(self) -> Decision:
        """What came out of it."""
        q, old = self.q, self.generation
        if self.fatal:
            verdict = Verdict(
                status=FinalStatus.FAILED, reason=self.fatal, run=q.spec.run, g=old.g, tag="", at=0.0, cause=self.cause
            )
            return ConcludeJob(Reason.EXHAUSTED, self.fatal, verdict)
        members = in_order(self.places)
        if members == old.members:
            return self._wait()
        code, why, reason = self.told.summary()
        generation = Generation(
            g=old.g,
            run=old.run,
            tag="",
            why=why,
            reason=reason,
            members=strip_unused_ports(members),
            slots=q.spec.slots,
            before=old.before,
            budget=self.budget,
            rev=self.rev,
            cause=self.cause,
        )
        starts = {place.node: place.since for place in members}
        said = {node for g, node in q.view.outcomes if g == old.g}
        over = [place.node for place in old.members if starts.get(place.node) != place.since]
        forget = [node for node in over if node in said]  # The word of those whose start goes on still counts.
        inside = {place.node for place in (*members, *old.members)}
        forget += sorted(said - inside)  # Said late, or did not fit into the revision that took the node out.
        planned = bool(self.told.joined or self.told.draining or self.told.surplus)
        at_work = [place.node for place in old.members if has_workers(place) and place.node not in self.ends]
        lost = [place.node for place in self.told.lost]
        return FormGeneration(
            code,
            reason,
            generation,
            lost=tuple(node for node in lost if node not in self.ends),
            forget=tuple(forget),
            unfinished=tuple(node for node in at_work if is_present(q, node)) if planned else (),
            gone=(*(place.node for place in self.told.freed), *(node for node in lost if node in self.ends)),
        )

    def _wait(self) -> WaitDecision:
        q, until = self.q, earliest(*self.until)
        vacant = vacant_servers(self.roles, self.places)
        if self.waiting:
            return WaitDecision(Reason.BACKOFF, self.waiting, until)
        away = [
            place for place in self.places if place.leaving and has_servers(place) and not is_present(q, place.node)
        ]
        if away:
            text = f"{away[0].node} ({tasks_in_words(away[0])}) was lost; its seats are free in a moment"
            return WaitDecision(Reason.VACANT, text, until)
        if vacant:
            text = f"the workers wait for {servers_in_words(self.roles, vacant)}"
            return WaitDecision(Reason.VACANT, text, until)
        if self.finished:
            at_work = sum(has_workers(place) and not place.leaving for place in self.places)
            return WaitDecision(
                Reason.FINISHING, f"{len(self.finished)} of {at_work} nodes done; waiting for the others", until
            )
        if not any(has_workers(place) and not place.leaving for place in self.places):
            return WaitDecision(Reason.VACANT, "no worker is left; waiting for nodes", until)
        spares = len(candidates_outside(q, frozenset(place.node for place in self.places)))
        text = f"training with {in_words(self.roles, self.places)}"
        return WaitDecision(Reason.TRAINING, text + (f", {spares} spare" if spares else ""), until)


@dataclass
class RevisionSummary:
    """What happens in a revision, for its reason."""

    lost: list[GenerationMember] = field(default_factory=list)
    freed: list[GenerationMember] = field(default_factory=list)
    left: list[GenerationMember] = field(default_factory=list)
    failed: list[GenerationMember] = field(default_factory=list)
    stopped: list[GenerationMember] = field(default_factory=list)
    draining: list[GenerationMember] = field(default_factory=list)
    surplus: list[GenerationMember] = field(default_factory=list)
    joined: list[GenerationMember] = field(default_factory=list)
    again: list[GenerationMember] = field(default_factory=list)
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
        return code, why, ", ".join(parts) + notes
