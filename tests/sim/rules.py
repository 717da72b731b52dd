"""What the rules of a collective job say beyond the guarantees: looked at on every document that is written.

It is said here in other words than in the core, on what really stands in the store and on what the writer had seen when
it decided. So a rule that is taken out of the core is noticed even where no guarantee is broken by it at once.
"""

from __future__ import annotations

from elastic.core.failure_class import FailureClass
from elastic.core.kv import Put
from elastic.core.membership.situation import BATCH_S
from elastic.core.model import (
    JOIN_WINDOW_MAX_S,
    PLANNED,
    ChangeReason,
    Generation,
    Go,
    JobSpec,
    MemberState,
    Outcome,
    OutcomeKind,
    Predecessor,
)
from elastic.core.restart_policy import CRASH_LOOP_MAX, MACHINE_FAULTS_MAX, RETRY
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from tests.sim.nodes import KEYS, Node, Observer, SharedReader
from tests.sim.world import World

SLACK = 0.96
"""Clocks run 2 % wrong, so a time that is waited for may be that much shorter, on both sides."""
PAUSE_MAX_S = 60.0
RAN_LONG_S = 60.0
"""Who ran for so long made progress, if nobody has said a step."""
GOES_ON = (ChangeReason.NODE_LOST, ChangeReason.FAILURE, ChangeReason.STOPPED, ChangeReason.JOINED)
"""These have members of the world before."""
REFUSED_MAX = 4
"""A proposal that is refused is not made again before the proposer has seen why."""


def _oldest(generation: Generation) -> int:
    """The oldest world whose outcomes count, now that this generation is there."""
    return generation.before.g if generation.before is not None else generation.g


def _is_here(writer: Node, name: str) -> bool:
    """Whether the writer of a document took the node for present."""
    seen = writer.sent_view
    return (seen is not None and name in seen.members) or name in writer.sent_memory.linked


class Rules(Observer):
    """When generations are made and go, who is in them, and what a failure costs."""

    def __init__(self) -> None:
        self._reader = SharedReader(KEYS)
        self._arrived: dict[tuple[int, str], float] = {}
        self._formed_at: dict[tuple[int, int], float] = {}
        self._newest: tuple[int, Generation] | None = None
        self._refused: dict[str, tuple[int, int]] = {}
        self._went_g: dict[int, int] = {}
        self._last_words: set[tuple[int, str, int, int]] = set()

    def after_refusal(self, world: World, node: Node, transaction: Transaction) -> None:
        """Nobody proposes the same again and again while nothing changes."""
        if transaction.kind in ("form", "go", "verdict"):
            revision, count = self._refused.get(node.name, (0, 0))
            count = count + 1 if revision == world.store.revision else 1
            self._refused[node.name] = (world.store.revision, count)
            if count > REFUSED_MAX:
                world.fail("12", f"{node.name} proposed {count} times what the store refuses ({transaction.kind})")

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """Every document that is written."""
        entries = {entry.key: entry for entry in world.store.list(KEYS.everything[0]).entries}
        view = self._reader.read(entries, world.store.revision, complete=True)
        self._same_store(world, view, node, transaction)
        match transaction.kind:
            case "register":
                self._arrived.setdefault((world.store_number, node.name), world.now)
                self._settings(world, view, node, transaction)
                if view.verdict is not None:
                    world.fail("4", f"{node.name} registered after the job had ended")
            case "form" | "go" if view.verdict is not None:
                world.fail("4", f"{node.name} wrote {transaction.kind} after the job had ended")
            case "form":
                self._formed(world, view, node)
            case "record":
                outcome = transaction.outcome
                if outcome is not None and outcome[1].forced and outcome[1].ended is OutcomeKind.OK:
                    world.fail("1", f"{node.name} says that its workers ended well, and that it had to stop them")
                self._word(world, view, node, transaction)
            case "verdict":
                self._gave_up(world, view, node)
        if any(isinstance(one, Put) and one.key == KEYS.go for one in transaction.then):
            self._went(world, view, node)

    @staticmethod
    def _gave_up(world: World, view: StoreView, node: Node) -> None:
        """A script that cannot start ends the job only if nothing else had failed."""
        verdict, seen = view.verdict.value if view.verdict is not None else None, node.sent_view
        if verdict is None or verdict.cause is None or RETRY not in verdict.reason or seen is None:
            return
        ends = [stored.value for (g, _), stored in seen.outcomes.items() if g == verdict.cause.g]
        own = [
            worker for end in ends if end.ended is OutcomeKind.FAILED for worker in end.exits if not worker.secondary
        ]
        if not all(worker.failure is FailureClass.STARTUP for worker in own):
            world.fail("4", f"{verdict.reason}, although {[worker.words for worker in own]} ended the first generation")

    @staticmethod
    def _same_store(world: World, view: StoreView, node: Node, transaction: Transaction) -> None:
        """Nobody writes into a store that is another than the one it has looked at."""
        seen = node.sent_view.incarnation if node.sent_view is not None else None
        if transaction.kind != "leave" and seen and view.incarnation and seen.value != view.incarnation.value:
            world.fail("1", f"{node.name} wrote {transaction.kind} into a store that it does not know")

    @staticmethod
    def _settings(world: World, view: StoreView, node: Node, transaction: Transaction) -> None:
        """Who registers has seen the settings that stand, or writes its own when nobody else lives."""
        seen = node.sent_view.spec if node.sent_view is not None else None
        writes = any(isinstance(one, Put) and one.key == KEYS.spec for one in transaction.then)
        others = sorted(set(view.members) - {node.name})
        if view.spec is None or seen is None or node.core.facts.me.rerun:
            return
        if writes and others and view.spec.mod_revision == view.revision:
            world.fail("settings", f"{node.name} changed the settings of the job although {others} live")
        if not writes and seen.mod_revision != view.spec.mod_revision:
            world.fail("settings", f"{node.name} registered and has not seen the settings that stand")

    def _word(self, world: World, view: StoreView, node: Node, transaction: Transaction) -> None:
        """The first word about the end of workers does not come after the last, where that one still counts."""
        assert transaction.outcome is not None
        g, outcome = transaction.outcome
        key = (world.store_number, node.name, g, outcome.since)
        if outcome.over:
            self._last_words.add(key)
        elif key in self._last_words and view.generation is not None and g >= _oldest(view.generation.value):
            world.fail("1", f"the first word of {node.name} about {g} came after its last")

    def _formed(self, world: World, view: StoreView, node: Node) -> None:
        assert view.generation is not None
        generation = view.generation.value
        self._formed_at[world.store_number, generation.g] = world.now
        old = self._newest[1] if self._newest is not None and self._newest[0] == world.store_number else None
        self._newest = (world.store_number, generation)
        if view.incarnation is None:
            world.fail("1", f"generation {generation.g} was written while nothing said which store this is")
        if view.spec is None:
            return
        spec, names = view.spec.value, [place.node for place in generation.members]
        if generation.why is ChangeReason.FIRST and len(names) < spec.np.first:
            world.fail("2", f"the first generation has {names}, {spec.np.first} are awaited")
        if generation.why is ChangeReason.REFORMED and len(names) < spec.np.low:
            world.fail("2", f"the job was formed anew by {names}, below {spec.np.low}")
        inside = {place.node for place in old.members} if old is not None else set()
        fresh = [name for name in names if name not in inside]
        self._in_time(world, generation, spec, fresh, len(inside))
        known = node.sent_view.members if node.sent_view is not None else view.members
        ages = [known[name].create_revision for name in fresh if name in known]
        if not spec.ips and ages != sorted(ages):
            world.fail("2", f"{fresh} join in another order than they came")
        if old is None:
            return
        self._sense(world, view, node, generation, old)
        if any(g < _oldest(generation) for g, _ in view.outcomes):
            world.fail("12", f"outcomes of worlds that are long over: {sorted(view.outcomes)}")
        if generation.why is ChangeReason.NODE_LOST and self._went_g.get(world.store_number, 0) == old.g:
            lost = {name for name in inside - set(names) if f"{name} was lost" in generation.reason}
            self._really_lost(world, view, lost, node)
        if generation.why in PLANNED and inside and inside == set(names):
            world.fail("5", f"generation {generation.g} changes nothing: {generation.reason}")
        if generation.why in (ChangeReason.SCALE_UP, ChangeReason.SCALE_DOWN):
            self._all_in_reach(world, generation, old, node)

    def _sense(self, world: World, view: StoreView, node: Node, generation: Generation, old: Generation) -> None:
        """A generation that follows another changes something, and says why in the right words."""
        names, inside = {place.node for place in generation.members}, {place.node for place in old.members}
        if generation.run != old.run:
            if generation.why is not ChangeReason.FIRST:
                world.fail("2", f"run {generation.run} of the job begins with a generation that is {generation.why}")
            return
        if names and not names & inside and generation.why in GOES_ON:
            world.fail("2", f"nobody of {old.g} is in {generation.g}, which is {generation.why} and not formed anew")
        if self._went_g.get(world.store_number, 0) != old.g and old.planned and not generation.planned:
            self._hurries(world, node, generation, old)
        if generation.why is ChangeReason.LEFT and node.sent_view is not None and generation.before is not None:
            g, nodes = generation.before.g, generation.before.nodes
            over = {name for (of, name), stored in node.sent_view.outcomes.items() if of == g and stored.value.over}
            gone = {name for name in inside - names if not _is_here(node, name)}  # np may leave others out.
            if busy := (gone - over) & set(nodes):
                world.fail("3", f"{sorted(busy)} may have workers of {g}, and generation {generation.g} says they left")
        if old.before is not None and old.before == generation.before and generation.planned and not old.planned:
            world.fail("5", f"generation {generation.g} plans for workers that {old.g} has stopped fast")
        if self._went_g.get(world.store_number, 0) == old.g or not names or names != inside:
            return
        if old.why not in PLANNED or generation.why in PLANNED:
            world.fail("5", f"generation {generation.g} is the same as {old.g}: {generation.reason}")
        seen, before = node.sent_view, old.before
        if seen is None or before is None:
            return
        over = {name for (g, name), stored in seen.outcomes.items() if g == before.g and stored.value.over}
        here = {name for name in before.nodes if _is_here(node, name)}
        if not here - over:
            world.fail("5", f"generation {generation.g} hurries {sorted(names)}, and all have stopped")

    @staticmethod
    def _hurries(world: World, node: Node, generation: Generation, old: Generation) -> None:
        """Who saves for a plan is hurried only by what breaks the world that is saved."""
        seen, before, memory = node.sent_view, old.before, node.sent_memory
        if seen is None or before is None or generation.why in (ChangeReason.REFORMED, ChangeReason.QUARANTINED):
            return
        world.counts["a planned stop was broken"] += 1
        ends = {name: stored.value for (g, name), stored in seen.outcomes.items() if g == before.g}
        if any(end.ended is OutcomeKind.FAILED or end.forced for end in ends.values()):
            return
        for name in before.nodes:
            stored, end = seen.members.get(name), ends.get(name)
            proven = stored is not None and ((name, stored.create_revision) in memory.gone or name in memory.dead)
            proven = proven or any(one.node == name and one.g in (before.g, old.g) for one in memory.evictions)
            if (end is None or not end.over) and (stored is None or proven):
                return
        world.fail("5", f"generation {generation.g} ({generation.reason}) hurries {before.nodes}, and nothing broke")

    @staticmethod
    def _really_lost(world: World, view: StoreView, lost: set[str], node: Node) -> None:
        """No registered node counts as lost, unless its death was proven, or the leader evicted it just now."""
        memory = node.sent_memory  # A proof may be taken back while a proposal is on its way.
        for name in sorted(lost):
            stored = view.members.get(name)
            then = node.sent_view.members.get(name) if node.sent_view is not None else stored
            proven = then is not None and ((name, then.create_revision) in memory.gone or name in memory.dead)
            newest = node.sent_view.generation if node.sent_view is not None else None
            g = newest.value.g if newest is not None else 0
            evicted = any(one.node == name and g and one.g == g for one in memory.evictions)
            if stored is not None and not (proven or evicted) and stored.value.state is not MemberState.DRAINING:
                world.fail("3", f"{name} counts as lost and is registered")

    def _in_time(self, world: World, generation: Generation, spec: JobSpec, fresh: list[str], ran: int) -> None:
        """Who joins has settled, unless no one more has room beside those that ran, of whom some may not stay.

        Without a maximum a start waits for as many as it needs, or as ran before.
        """
        came = [self._arrived.get((world.store_number, name), 0.0) for name in fresh]
        if not came:
            return
        since = world.now - max(came)
        if generation.why is ChangeReason.JOINED and since < SLACK * BATCH_S and not self._back(generation, fresh):
            world.fail("6", f"{fresh} join at the gate one by one")
        full = max(len(generation.members), ran + len(fresh)) >= spec.np.high or generation.why not in (
            ChangeReason.FIRST,
            ChangeReason.SCALE_UP,
            ChangeReason.REFORMED,
        )
        if spec.np.unlimited and generation.why in (ChangeReason.FIRST, ChangeReason.REFORMED):
            full = len(generation.members) >= max(spec.np.first, ran)
        if not full and since < SLACK * spec.join_window_s and world.now - min(came) < SLACK * JOIN_WINDOW_MAX_S:
            world.fail("6", f"{fresh} did not settle before generation {generation.g}")

    @staticmethod
    def _back(generation: Generation, fresh: list[str]) -> bool:
        return generation.before is not None and bool(set(fresh) & set(generation.before.nodes))

    def _all_in_reach(self, world: World, generation: Generation, old: Generation, node: Node) -> None:
        """No planned change while a member works on that does not reach the store, as far as the proposer knew."""
        for place in old.members:
            other = world.nodes[place.node]
            works = other.workers is not None and other.workers.generation.g == old.g
            if works and node.sent_view is not None and place.node not in node.sent_view.members:
                world.fail("7", f"{generation.why} while {place.node} works on and does not reach the store")

    def _went(self, world: World, view: StoreView, node: Node) -> None:
        assert view.generation is not None
        assert view.go is not None
        generation, go, seen = view.generation.value, view.go.value, node.sent_view
        if self._went_g.get(world.store_number) == go.g:
            world.fail("1", f"a second go for {go.g}")
        self._went_g[world.store_number] = go.g
        for place in generation.members:
            stored = seen.members.get(place.node) if seen is not None else None
            if stored is None and place.node not in node.sent_memory.linked and place.node != node.name:
                world.fail("6", f"go for {generation.g}, and {place.node} is known to be gone")
            if stored is not None and stored.value.state is MemberState.DRAINING:
                world.fail("5", f"go for {generation.g}, and {place.node} is known to drain")
        before = generation.before
        if before is None or view.spec is None:
            return
        known = seen.outcomes if seen is not None else view.outcomes  # As the proposer had seen them.
        outcomes = {name: o.value for (g, name), o in known.items() if g == before.g}
        if set(outcomes) == set(before.nodes) and all(o.ended is OutcomeKind.OK and o.over for o in outcomes.values()):
            world.fail("14", f"go for {generation.g} although every worker of {before.g} ended well")
        waited = world.now - self._formed_at.get((world.store_number, generation.g), 0.0)
        self._charged(world, (generation, before, go, view.spec.value), outcomes, waited)

    @staticmethod
    def _charged(
        world: World, what: tuple[Generation, Predecessor, Go, JobSpec], outcomes: dict[str, Outcome], waited: float
    ) -> None:
        """What the end of the last world costs."""
        generation, before, go, spec = what
        exits = [
            worker for outcome in outcomes.values() if outcome.ended is OutcomeKind.FAILED for worker in outcome.exits
        ]
        own = [worker for worker in exits if not worker.secondary]
        if any(worker.code in spec.fatal_exit_codes or worker.failure is FailureClass.UNRECOVERABLE for worker in own):
            world.fail("10", f"go for {generation.g} after a failure that no restart mends")
        if own and all(worker.failure is FailureClass.STARTUP for worker in own):
            world.fail("10", f"go for {generation.g} although the script cannot start")
        if go.budget.charged > spec.restarts_max or go.budget.consecutive_failures >= CRASH_LOOP_MAX:
            world.fail("10", f"go for {generation.g} although no restart is left: {go.budget}")
        charged = go.budget.charged - generation.budget.charged
        lost = [name for name in before.nodes if name not in outcomes]
        step = max((o.step for o in outcomes.values()), default=-1)
        waited_for = any(worker.failure is FailureClass.PARTITION for o in outcomes.values() for worker in o.exits)
        ran_long = step < 0 and not waited_for and max((o.ran_s for o in outcomes.values()), default=0.0) >= RAN_LONG_S
        progress = step > generation.budget.step or ran_long
        asked = progress and bool(own) and all(worker.failure is FailureClass.RESTART_REQUESTED for worker in own)
        machine = bool(own) and all(worker.failure.of_machine for worker in own)
        earlier = 0 if progress else generation.budget.machine_faults
        echo = not own and (before.why is not ChangeReason.FAILURE or any(o.forced for o in outcomes.values()))
        judged = generation.budget.judged_g == before.g  # It was charged when a host was left out.
        split = all(worker.failure is FailureClass.PARTITION for worker in own) and any(
            o.unreached for o in outcomes.values()
        )
        free = judged or not exits or bool(lost) or asked or (machine and earlier < MACHINE_FAULTS_MAX) or echo or split
        if charged != (0 if free else 1):
            words = [worker.words for worker in exits]
            world.fail("10", f"{charged} charged at {generation.g} for {words}, lost {lost}, progress {progress}")
        if charged:
            consecutive_failures = 0 if progress else generation.budget.consecutive_failures + 1
            pause_s = min(2.0 ** (consecutive_failures - 2), PAUSE_MAX_S) if consecutive_failures > 1 else 0.0
            if go.budget.consecutive_failures != consecutive_failures:
                world.fail("10", f"{go.budget} after {consecutive_failures} failures in a row without progress")
            if waited < SLACK * pause_s:
                world.fail("10", f"go for {generation.g} after {waited:.2f} s, a pause of {pause_s} s was due")
