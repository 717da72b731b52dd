"""Plays in which nodes are parted: by death, by a split network, by what they do not hear (`registry`)."""

from __future__ import annotations

from elastic.core.model import ChangeReason, Generation, Go
from elastic.core.ps.model import ClusterSpec, PsJobSpec
from elastic.core.ps.task_placement import has_workers
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from tests.sim import calm
from tests.sim.accidents import alive, apart_for, pairs_apart, thaw
from tests.sim.calm import STOP_S, Calm, Expected, inside, went
from tests.sim.nodes import Node, Observer
from tests.sim.nurseries import REACH_S
from tests.sim.plays.leaders import leader_of
from tests.sim.plays.meetings import SOON_S, WhenFormed, comes, members_of
from tests.sim.storefaults import leases_ended_early
from tests.sim.world import World


def peers_fail_first(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An agent dies, and its peers fail before that is noticed: they are asked, and it is a loss and no failure."""

    def die() -> None:
        world.kill_agent(node)
        for peer in members_of(world, old):
            if peer.alive and peer.workers is not None:
                world.after(0.002, world.echo(peer, peer.workers))

    world.after(0.2, die)

    def formed(generation: Generation) -> str:
        later = generation.g > old.g + 1  # At the gate: a spare that was not linked yet joins, too.
        return (
            ""
            if generation.why is ChangeReason.NODE_LOST or later
            else f"{generation.why} after the loss of {node.name}"
        )

    text = f"{node.name} died, and the others do not start"
    watch.expect(world, Expected("6", text, world.now + 2 * SOON_S, lambda view: went(view) > old.g, formed))


def link_up_while_asked(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The first is gone without a word; as the next asks it, the lease of another is revoked whose link is new."""
    first, other = world.nodes[old.members[0].node], world.nodes[old.members[-1].node]
    for one in members_of(world, old):
        if one.workers is not None:
            one.workers.hangs = True
    world.kill_node(first)

    def formed(generation: Generation) -> str:
        return f"{other.name} lives, is linked, and is left out" if generation.index(other.name) is None else ""

    def revoke() -> None:
        if other.lease is not None:
            world.store.revoke(other.lease)
            world.deliver()

    def look() -> None:
        if first.name in watch.view(world).members:
            world.after(0.001, look)
            return
        world.after(world.random.uniform(0.08, 0.11), revoke)
        text = f"{first.name} is gone, and the others do not start"
        watch.expect(world, Expected("6", text, world.now + 2 * SOON_S, lambda view: went(view) > old.g, formed))

    look()


def first_astray(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The first does not reach the store for less than the limit, and the next proposes: nothing is stopped.

    In every second seed its lease is revoked besides, so that the next is called at once.
    """
    watch.expect_nothing(world)
    first = members_of(world, old)[0]
    seconds = world.random.uniform(1.0, world.spec.etcd_outage_timeout_s * 0.8)
    world.astray_for(first, seconds, then=lambda: watch.store_is_back(world))
    if world.seed % 2 and first.lease is not None:
        world.store.revoke(first.lease)
        world.deliver()


def done_while_frozen(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An agent stands still while its workers end well, and goes on as its right has ended and its lease has not."""
    node.agent_frozen = True
    left_s = node.core.facts.workers.run_deadline.until() - world.local(node)
    world.job.done_s = world.job.work_s
    for one in members_of(world, old):
        if one.workers is not None:
            world.after(0.1, lambda one=one, workers=one.workers: world.end_worker(one, workers, 0))  # type: ignore[misc]
    world.after(max(left_s, 0.2) + 0.1, lambda: thaw(world, node))


def forced_and_echo(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An agent stands still until its nursery has killed its workers, and those of others fail because of that."""
    go = watch.view(world).go
    charged = go.value.budget.charged if go is not None else 0
    node.agent_frozen = True
    after_s = max(node.core.facts.workers.run_deadline.until() - world.local(node), 0.2) + 0.3
    for one in members_of(world, old):
        if one.workers is not None:
            one.workers.hangs = True
            if one is not node:
                world.after(after_s, world.echo(one, one.workers))
    world.after(after_s, lambda: thaw(world, node))

    def free(_: Generation, go: Go) -> str:
        return f"{go.budget} after {charged}, and no script failed" if go.budget.charged > charged else ""

    text = f"{node.name} had to stop its workers, and nothing starts"
    done = lambda view: went(view) > old.g  # noqa: E731
    watch.expect(world, Expected("10", text, world.now + after_s + 3 * SOON_S, done, went=free))


def leaver_dies_last(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node drains, and dies before it has left, when all others have stopped already: nobody is hurried."""
    world.drain(node)
    until = world.now + SOON_S

    def look() -> None:
        view = watch.view(world)
        over = {name for (g, name), stored in view.outcomes.items() if g == old.g and stored.value.over}
        if over >= {place.node for place in old.members} - {node.name} and node.workers is not None:
            world.kill_node(node)
        elif world.now < until:
            world.after(0.005, look)

    look()


def all_lost_and_others_come(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Every machine is lost, and others come one after the other: they settle before the job is formed anew."""
    ttl_s = world.spec.lease_ttl_s
    for one in members_of(world, old):
        world.kill_node(one)
    for number in range(2):
        at = ttl_s * (0.4 + 0.5 * number) + world.random.uniform(0.0, 0.1)
        world.after(at, lambda number=number: comes(world, f"other{number}"))  # type: ignore[misc]


def all_astray_and_others_come(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """No member reaches the store, or others that come: these wait for as long as the members may run on."""
    members, ttl_s = members_of(world, old), world.spec.lease_ttl_s
    for number in range(2):
        comes(world, f"other{number}")
    others = alive(world)[-2:]

    def back() -> None:
        for other in others:
            other.apart_from.clear()

    for other in others:
        pairs_apart(world, other, members)
    for one in members:
        world.astray_for(one, world.spec.etcd_outage_timeout_s + 5 * ttl_s, then=back)


def done_at_the_gate(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Fewer nodes are wanted, and as that is written every worker ends well: the job is done."""

    def formed(_: Generation) -> None:
        world.job.done_s = world.job.work_s
        for one in members_of(world, old):
            if one.workers is not None:
                world.end_worker(one, one.workers, 0)

    world.observe(WhenFormed(formed))
    world.scale_to(len(old.members) - 1)


def all_but_one_lease_ended(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The store ends the leases of all but one, who proposes then and never heard the others: nothing is stopped."""
    watch.expect_nothing(world)
    for one in members_of(world, old):
        if one is not node and one.lease is not None:
            world.log(f"{one.name}: its lease is revoked")
            world.store.revoke(one.lease)
    world.deliver()
    world.after(1.0, lambda: watch.store_is_back(world))


class WordLingers(Observer):
    """The first word of some node about a failure lingers for longer than its sender waits."""

    armed = True

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is sent."""
        if self.armed and transaction.outcome is not None and not transaction.outcome[1].over:
            self.armed = False
            world.late_answers = 1.0

            def sent() -> None:
                world.late_answers = 0.0

            world.after(0.0, sent)
        return 0.0


def word_lingers(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A worker fails, and the first word about that arrives after the last, if at all."""
    world.observe(WordLingers())
    if node.workers is not None:
        world.end_worker(node, node.workers, 1)


# --- a split network ------------------------------------------------------------------------------------------------


def split_of_two(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Two machines do not reach each other: the first goes on."""
    calm.split(world, watch, node, old)


def split_from_the_leader(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Without heartbeats the leader is cut from the others: it forms a generation without itself, and another leads."""
    leader = leader_of(world, watch)
    if leader is not None:
        calm.split(world, watch, leader, old)


def fails_in_a_split(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A machine is cut from the others, and before anybody gives up on it a script fails by itself: that is charged."""
    apart_for(world, node, 3 * REACH_S)
    failing = members_of(world, old)[0]

    go = watch.view(world).go
    charged = go.value.budget.charged if go is not None else 0

    def paid(_: Generation, go: Go) -> str:
        return "" if go.budget.charged == charged + 1 else f"{go.budget} after {charged} and a failure in a split"

    def fail() -> None:
        if failing.workers is not None:
            world.end_worker(failing, failing.workers, 1)
            text = "a script failed in a split network, and nothing starts"
            done = lambda view: went(view) > old.g  # noqa: E731
            watch.expect(world, Expected("10", text, world.now + 2 * SOON_S, done, went=paid))

    world.after(0.85 * REACH_S, fail)


def split_and_all_needed(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A machine is cut from the others, and the job cannot do without: they wait until the way is open."""
    over = world.now + 3 * REACH_S
    apart_for(world, node, 3 * REACH_S)
    text = "the way is open again, and nothing goes on"
    watch.expect(
        world,
        Expected(
            "a split network",
            text,
            over + 1.0,
            lambda _: world.now > over,
            lambda generation: f"{generation.why} while all are needed",
        ),
    )


def split_and_a_spare(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A machine is cut from the others, also the first one; all are needed, and a spare is there for its place."""
    out = node if world.seed % 2 else members_of(world, old)[0]
    apart_for(world, out, 6 * REACH_S)

    done = lambda view: went(view) > old.g and out.name not in inside(view)  # noqa: E731
    text = f"{out.name} is cut from the others, and no spare takes its place"
    watch.expect(world, Expected("a split network", text, world.now + 2 * REACH_S + 3.0 + 3 * STOP_S, done))


def split_of_pairs(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Of two machines that do not reach each other the later one goes; and one that does not reach two goes alone."""
    members = members_of(world, old)
    others = members[2:4] if world.seed % 2 else members[3:4]
    out = node if world.seed % 2 else members[3]
    pairs_apart(world, node, others)
    rest = {one.name for one in members} - {out.name}

    done = lambda view: went(view) > old.g and inside(view) == rest  # noqa: E731
    text = f"{node.name} is cut from {[one.name for one in others]}, and the others do not go on without {out.name}"
    watch.expect(world, Expected("a split network", text, world.now + 2 * REACH_S + 3.0 + 3 * STOP_S, done))


def split_in_a_planned_stop(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node drains as a machine is cut from the others: who waits to save with it does not wait for long."""
    apart_for(world, members_of(world, old)[-1], 6 * REACH_S)
    world.drain(node)

    def free(_: Generation, go: Go) -> str:
        return f"{go.budget} in a split network" if go.budget.charged > world.job.failures else ""

    done = lambda view: went(view) > old.g and node.name not in inside(view)  # noqa: E731
    text = f"{node.name} drains in a split network, and the others wait for long"
    watch.expect(world, Expected("a split network", text, world.now + 2 * REACH_S + 12.0, done, went=free))


def leases_ended_in_a_planned_stop(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node drains, and while all save the store ends leases that were refreshed in time: nobody is killed."""
    leaves = members_of(world, old)[-1]
    world.drain(leaves)
    world.after(0.6, lambda: leases_ended_early(world, world.random))
    over = world.now + 3 * world.spec.lease_ttl_s

    def formed(generation: Generation) -> str:
        return f"{leaves.name} drains, and is in {generation.g}" if generation.index(leaves.name) is not None else ""

    text = "nothing happens after a drain"
    watch.expect(world, Expected("5", text, over + 1.0, lambda _: world.now > over, formed))

    def look() -> None:
        for one in members_of(world, old):
            if one.workers is not None and one.workers.generation.g == old.g and one.workers.overdue:
                world.fail("7", f"the workers of {one.name} are killed while they save")
        if world.now < over:
            world.after(0.1, look)

    look()


def more_wanted_at_the_gate(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Everybody of a roster is gone, and when it is formed anew an operator wants more than those that are there."""
    view: StoreView = watch.view(world)
    for one in world.nodes.values():
        if one.name in view.members:
            world.kill_agent(one)
    for number in range(world.size):
        comes(world, f"h{number}")

    def formed(generation: Generation) -> None:
        low = sum(map(has_workers, ClusterSpec.of(generation).members)) + 1
        world.scale_to(low, low=low)
        comes(world, "more")
        apart = (
            isinstance(world.spec, PsJobSpec) and world.spec.layout.separate
        )  # Else one node has all, and np counts nobody.

        def look() -> None:
            now = watch.view(world)
            if apart and now.verdict is None and went(now) <= generation.g:
                world.fail("6", f"{low} nodes with workers are wanted, and here, and they do not start together")

        world.after(10 * SOON_S, look)

    world.observe(WhenFormed(formed))


def passed_over_while_it_saves(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """One is left out while its workers save, and the others go on while it is away; then it is wanted again.

    Its workers save in vain: those of the others had not said yet that they listen.
    """
    *others, last = members_of(world, old)
    for one in others:
        if one.workers is not None:
            one.workers.listening = False
    world.scale_to(len(others))

    def away() -> None:
        if last.lease is not None:
            world.store.revoke(last.lease)
            world.deliver()
        world.astray_for(last, world.random.uniform(1.0, 3.0))
        world.after(3.1, lambda: world.scale_to(len(old.members)))

    world.after(6.0, away)


def left_out_and_lost(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """One is left out, and dies while its workers save with those of the others: these are stopped fast."""
    last = members_of(world, old)[-1]

    def dies() -> None:
        if last.workers is not None:  # Otherwise it has saved, and nobody waits for it.
            until = world.now + 2 * world.spec.lease_ttl_s + SOON_S
            text = f"{last.name} died while all saved, and the others do not go on"
            watch.expect(world, Expected("6", text, until, lambda view: went(view) > old.g))
        world.kill_node(last)

    world.scale_to(len(old.members) - 1)
    world.observe(WhenFormed(lambda _: world.after(world.random.uniform(0.0, 0.1), dies)))
