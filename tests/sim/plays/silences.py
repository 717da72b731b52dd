"""Plays about nodes that are silent: which are evicted, which are not, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Collection

from elastic.core.membership.evictions import STEADY_S
from elastic.core.model import ChangeReason, Generation
from elastic.core.transactions import Transaction
from tests.sim.accidents import alive, apart_for, cut_for, deaf_for, pairs_apart, thaw
from tests.sim.calm import (
    NOTICE_S,
    SILENT_MORE_S,
    SILENT_TIMEOUTS,
    STOP_S,
    Calm,
    Expected,
    inside,
    silent,
    went,
)
from tests.sim.evictions import evicted_node
from tests.sim.nodes import Node, Observer
from tests.sim.plays.leaders import leader_of
from tests.sim.plays.meetings import comes, members_of
from tests.sim.world import World

BACK_S = 90.0
"""A node that was evicted, and is well again, is in a generation again within this time."""


class WhenOut(Observer):
    """Calls something once, when the first generation without a node is written."""

    def __init__(self, name: str, call: Callable[[Generation], None]) -> None:
        self.name = name
        self.call: Callable[[Generation], None] | None = call

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """A document was written."""
        if transaction.kind != "form" or self.call is None:
            return
        stored = Calm().view(world).generation
        if stored is not None and stored.value.index(self.name) is None:
            call, self.call = self.call, None
            call(stored.value)


class EvictedOnce(Observer):
    """Counts the evictions of these nodes, and complains about the second one."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.evicted = ""

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """An eviction was carried out, perhaps."""
        if transaction.kind != "evict" or (name := evicted_node(transaction)) not in self.names:
            return
        if self.evicted:
            world.fail("silence", f"{name} is evicted, and {self.evicted} was evicted before")
        self.evicted = name
        world.counts["silence: evicted once"] += 1


class WhenEvicted(Observer):
    """Lets the first eviction linger on its way while something happens."""

    def __init__(self, seconds: float, then: str) -> None:
        self.seconds = seconds
        self.then = then
        self.done = False

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is on its way."""
        if transaction.kind != "evict" or self.done:
            return 0.0
        self.done = True
        if self.then == "the leader sleeps":
            world.after(0.0, lambda: hold_up(world, node, 2 * self.seconds))
        return self.seconds


def hold_up(world: World, node: Node, seconds: float) -> None:
    """The machine of a node stands still for so long."""
    if node.hears:
        node.frozen = True
        world.log(f"{node.name}: stands still for {seconds:.1f} s")
        world.after(seconds, lambda: thaw(world, node))


def silent_leader(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The leader is silent: another node takes the lead, and the others go on without it."""
    leader = leader_of(world, watch)
    if leader is not None:
        silent(world, watch, leader, old)


def leader_sleeps(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The leader stands still, wakes up as the leader that it was, and evicts nobody; it comes back."""
    leader = leader_of(world, watch)
    if leader is None or not world.heartbeats_on:
        return
    world.job.work_s += 2 * BACK_S

    def out(_: Generation) -> None:
        text = f"{leader.name} led, stood still, goes on, and is in no generation again"
        done = lambda view: leader.name in inside(view)  # noqa: E731
        back = lambda: world.counts.update(["silence: a leader that slept is back"])  # noqa: E731
        watch.expect(world, Expected("silence", text, world.now + BACK_S, done, then=back))

    world.observe(WhenOut(leader.name, out))
    hold_up(world, leader, world.chance.uniform(1.0, 8.0) * world.spec.silence_timeout_s)


def _expect_no_loss(world: World, watch: Calm, old: Generation, seconds: float, why: str) -> None:
    """Nobody of this generation is lost for so long."""
    names = {place.node for place in old.members}

    def formed(generation: Generation) -> str:
        lost = generation.why is ChangeReason.NODE_LOST and names - {place.node for place in generation.members}
        return f"{lost} lost, although {why}" if lost else ""

    until = world.now + seconds
    watch.expect(world, Expected("silence", "", until, lambda _: world.now > until - 0.1, formed))


def reached_by_another(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The leader does not reach one node, and others do: that node is not evicted."""
    leader = leader_of(world, watch)
    members = members_of(world, old)
    if leader is None or not world.heartbeats_on or leader not in members or len(members) < 3:
        return
    other = next(one for one in members if one is not leader)
    _expect_no_loss(world, watch, old, world.spec.lease_ttl_s, f"only {leader.name} does not reach {other.name}")
    pairs_apart(world, other, [leader])
    world.after(world.spec.lease_ttl_s, lambda: other.apart_from.clear())


def half_is_cut_off(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A switch is gone: half of the nodes reach neither the others nor the store. They are left to their leases."""
    members = members_of(world, old)
    if not world.heartbeats_on:
        return
    leader = leader_of(world, watch)
    half = [one for one in members if one is not leader][: (len(members) + 1) // 2]
    _expect_no_loss(world, watch, old, 0.6 * world.spec.lease_ttl_s, f"{len(half)} are silent at once")
    for one in half:
        cut_for(world, one, 3 * world.spec.lease_ttl_s)


def half_is_cut_off_as_one_joins(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """As above, and one of them has just joined: its link came up, and no heartbeat has come over it yet."""
    leader = leader_of(world, watch)
    if leader is None or not world.heartbeats_on:
        return
    _expect_no_loss(world, watch, old, 0.6 * world.spec.lease_ttl_s, "half of all are silent at once")
    some = [one for one in members_of(world, old) if one is not leader][:2]
    late = world.start_node("late", warm=True)

    def cut() -> None:
        if late.name not in leader.linked:
            world.after(0.01, cut)
            return
        for one in (*some, late):
            cut_for(world, one, 3 * world.spec.lease_ttl_s)

    cut()


def cut_off_with_the_leader(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A switch is gone: the leader and two other nodes reach nobody. Whoever takes the lead evicts none of them."""
    leader = leader_of(world, watch)
    if leader is None or not world.heartbeats_on:
        return
    others = [one for one in members_of(world, old) if one is not leader]
    some = [leader, *world.chance.sample(others, 2)]
    _expect_no_loss(world, watch, old, 0.6 * world.spec.lease_ttl_s, f"{len(some)} are silent at once")
    for one in some:
        cut_for(world, one, 3 * world.spec.lease_ttl_s)


def two_are_apart(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Two of seven nodes reach the store and each other, and no other node: the others go on without them in time."""
    leader = leader_of(world, watch)
    if leader is None or not world.heartbeats_on:
        return
    members = members_of(world, old)
    two = world.chance.sample([one for one in members if one is not leader], 2)
    for one in two:
        pairs_apart(world, one, [other for other in members if other not in two])
    names = {one.name for one in two}
    until = world.now + SILENT_TIMEOUTS * world.spec.silence_timeout_s + SILENT_MORE_S
    text = f"{sorted(names)} do not reach the others, and these do not go on without both by {until:.1f}"
    watch.expect(world, Expected("silence", text, until, lambda view: not names & set(inside(view))))


def leader_is_deaf(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The leader hears no other node, and what it sends arrives: it says that it hears none, and is replaced."""
    leader = leader_of(world, watch)
    if leader is None or not world.heartbeats_on:
        return
    deaf_for(world, leader, [one for one in members_of(world, old) if one is not leader], 20.0)
    until = world.now + (1.0 + SILENT_TIMEOUTS) * world.spec.silence_timeout_s + SILENT_MORE_S
    text = f"{leader.name} leads and hears no other node, and the others do not go on without it by {until:.1f}"
    watch.expect(world, Expected("silence", text, until, lambda view: leader.name not in inside(view)))


class FormLingers(Observer):
    """Lets the proposals of a while linger on their way until its end."""

    def __init__(self, until: float) -> None:
        self.until = until

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is on its way."""
        return max(self.until - world.now, 0.0) if transaction.kind == "form" else 0.0


def reached_meanwhile(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A proposal lingers and two nodes are silent; when one is back, all but the leader reach the other one.

    The leader must not evict the first on the trial of before.
    """
    leader = leader_of(world, watch)
    if leader is None or not world.heartbeats_on:
        return
    first, second = [one for one in members_of(world, old) if one is not leader][:2]
    pairs_apart(world, first, [one for one in alive(world) if one is not first])
    world.observe(FormLingers(world.now + 2.3))
    held_up_s = world.chance.uniform(0.8, 1.15)
    world.after(held_up_s, lambda: hold_up(world, second, 3.9 - held_up_s))
    world.after(world.chance.uniform(0.8, 1.2), lambda: world.scale_to(5))
    world.after(2.6, lambda: first.apart_from.intersection_update({leader.name}))
    world.after(10.0, first.apart_from.clear)


def held_up_for_a_moment(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Every agent stands still now and then, for less than the silence timeout: nobody is evicted."""
    if not world.heartbeats_on:
        return
    _expect_no_loss(world, watch, old, 20.0, "nobody was silent for longer than the silence timeout")
    shortest_s, longest_s = 0.1, 0.75 * world.spec.silence_timeout_s
    for number in range(20):
        one = world.chance.choice(members_of(world, old))
        seconds = world.chance.uniform(shortest_s * world.spec.silence_timeout_s, longest_s)
        world.after(number * 1.0, lambda one=one, seconds=seconds: hold_up(world, one, seconds))  # type: ignore[misc]


def eviction_lingers(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An eviction lingers on its way, its leader stands still, and the silent node goes on meanwhile."""
    if not world.heartbeats_on:
        return
    then = "the leader sleeps" if world.seed % 2 else ""
    world.observe(WhenEvicted(world.chance.uniform(0.2, 6.0), then))
    seconds = world.spec.silence_timeout_s * world.chance.uniform(1.2, 2.5)
    hold_up(world, node, seconds)
    world.after(seconds + 0.1, lambda: world.store.revoke(node.lease) if node.lease and world.seed % 3 == 0 else None)
    world.after(seconds + 0.2, world.deliver)


def evicted_and_another_comes(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A machine stands still, or its agent is cut off, until it is evicted; another agent starts on its host."""
    if not world.heartbeats_on:
        return
    if world.seed % 2:
        hold_up(world, node, 20.0)
    else:
        cut_for(world, node, 20.0)
    world.after(1.2 * world.spec.silence_timeout_s, lambda: comes(world, node.host))


def silent_of_two(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """One of two nodes is silent, or they do not reach each other: one of them goes on."""
    if not world.heartbeats_on:
        return
    if world.seed % 3:
        silent(world, watch, node, old)
        return
    apart_for(world, node, 20.0)
    until = world.now + 2.5 * world.spec.silence_timeout_s + NOTICE_S + STOP_S
    text = "two nodes do not reach each other, and none goes on"
    watch.expect(world, Expected("silence", text, until, lambda view: went(view) > old.g))


def silent_spare(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A spare is silent, and then a member is: the spare does not take its place."""
    spare = next((one for one in alive(world) if old.index(one.name) is None), None)
    if spare is None or not world.heartbeats_on:
        return
    world.kill_node(spare)

    def formed(generation: Generation) -> str:
        return f"{spare.name} is silent and is taken in" if generation.index(spare.name) is not None else ""

    def strike() -> None:
        until = world.now + 2.0 * world.spec.silence_timeout_s + STOP_S
        text = f"{node.name} is silent, and nothing starts"
        watch.expect(world, Expected("silence", text, until + 8.0, lambda view: went(view) > old.g, formed))
        world.kill_agent(node)

    world.after(1.6 * world.spec.silence_timeout_s, strike)


def silent_at_the_gate(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A worker fails, and while the others stop their workers a node is silent: they do not wait for its lease."""
    if not world.heartbeats_on or len(old.members) < 3:
        return
    first = next(one for one in members_of(world, old) if one is not node)
    if first.workers is None:
        return
    world.end_worker(first, first.workers, 1)
    world.after(0.01, lambda: world.kill_node(node))
    until = world.now + 2.0 * world.spec.silence_timeout_s + 1.0 + STOP_S
    text = f"{node.name} is silent at the gate, and the others do not start by {until:.1f}"
    watch.expect(
        world, Expected("silence", text, until, lambda view: went(view) > old.g and node.name not in inside(view))
    )


def cut_from_the_others(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node reaches the store and no other node, for long: it is evicted once, and joins when it is heard again.

    Of two nodes one evicts the other.
    """
    if not world.heartbeats_on:
        return
    world.job.work_s += 120.0
    evicted = EvictedOnce({node.name} if len(old.members) > 2 else inside(watch.view(world)))
    world.observe(evicted)
    apart_for(world, node, 60.0)
    limit = world.now + SILENT_TIMEOUTS * world.spec.silence_timeout_s + SILENT_MORE_S
    text = f"nobody reaches {node.name}, and it is not evicted by {limit:.1f}"
    watch.expect(world, Expected("silence", text, limit, lambda _: bool(evicted.evicted)))
    heard_at = world.now + 60.0 + STEADY_S - 0.3

    def formed(generation: Generation) -> str:
        joins = generation.why is ChangeReason.SCALE_UP and generation.index(node.name) is not None
        return f"{node.name} joins before it was heard for {STEADY_S:g} s" if joins and world.now < heard_at else ""

    until = world.now + 60.0 + BACK_S
    text = f"{node.name} is reached again, and is not in the world again"
    done = lambda view: not node.apart and node.name in inside(view)  # noqa: E731
    watch.expect(world, Expected("silence", text, until, done, formed))


def silent_as_another_joins(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The only member is silent while it stops its workers, because another node is to join: they may run on."""
    if not world.heartbeats_on or node.workers is None:
        return
    node.workers.hangs = True
    comes(world, "h9")
    seconds = world.chance.uniform(1.5, 12.0) * world.spec.silence_timeout_s
    world.after(world.chance.uniform(0.5, 3.0), lambda: hold_up(world, node, seconds))


def halves_apart(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Two halves of the nodes reach the store and not each other, for a while: none takes the lead back and forth."""
    if not world.heartbeats_on:
        return
    members = members_of(world, old)
    world.chance.shuffle(members)
    half, others = members[: len(members) // 2], members[len(members) // 2 :]
    for one in half:
        pairs_apart(world, one, others)

    def back() -> None:
        for one in members:
            one.apart_from.clear()

    world.after(world.chance.uniform(5.0, 40.0), back)


def steps_go_on(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An agent stands still, and the workers make their steps: it is not evicted before its lease ends."""
    if not world.heartbeats_on:
        return
    node.agent_frozen = True
    world.after(3.8, lambda: thaw(world, node))
    _expect_no_loss(world, watch, old, 3.8, f"workers of {node.name} make their steps")


def silent_server(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node of a parameter-server job is silent, with its agent or whole: its tasks are not given away too early."""
    kind = world.seed % 3
    if kind == 0:
        world.kill_node(node)
    elif kind == 1:
        hold_up(world, node, 8.0)
    else:
        node.agent_frozen = True
        world.after(15.0, lambda: thaw(world, node))
