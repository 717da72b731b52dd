"""Plays in which several things happen in one moment (`registry`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from elastic.core.agent.links.vouching import ASKS_PER_TTL
from elastic.core.agent.state import Phase
from elastic.core.kv import KeyRange, Put
from elastic.core.membership.memory import LINK_PATIENCE_S
from elastic.core.membership.planned_changes import SCALE_UP_INTERVAL_S
from elastic.core.model import ChangeReason, Generation, Go
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView, encode
from tests.sim.accidents import CannotStart, CrashLoop, bad_for, empty, operator_writes, take_away, thaw
from tests.sim.calm import Calm, Expected, inside, went
from tests.sim.nodes import FATAL, HOPELESS, KEYS, Node, Observer
from tests.sim.storefaults import RECONNECT_S, leases_ended_early
from tests.sim.world import World

SOON_S = 3.0
NOTICED_S = 0.4
"""The time that agents and the store need from the end of a lease, or from a missed answer, to the next generation."""


class WhenFormed(Observer):
    """Calls something once, when the next generation is written."""

    def __init__(self, call: Callable[[Generation], None]) -> None:
        self.call: Callable[[Generation], None] | None = call

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """A document was written."""
        if transaction.kind == "form" and self.call is not None:
            call, self.call = self.call, None
            view = Calm().view(world)
            if view.generation is not None:
                call(view.generation.value)


def members_of(world: World, old: Generation) -> list[Node]:
    """The nodes of a generation, in its order."""
    return [world.nodes[place.node] for place in old.members]


def comes(world: World, host: str) -> None:
    """A node comes and registers at once."""
    world.start_node(host, warm=True)


def nothing(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """It has been played already."""


def all_members_lost(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Every member is gone in one moment; spares are there, fewer than np wants or just as many, and one more comes."""
    spares = set(watch.view(world).members) - inside(watch.view(world))
    for one in members_of(world, old):
        world.kill_agent(one)
    for name in sorted(spares)[: world.seed % 2]:
        world.kill_agent(world.nodes[name])
    at = world.now + 2 * world.spec.lease_ttl_s + world.random.uniform(0.0, 3.0)
    world.after(at - world.now, lambda: comes(world, "late"))


def store_empty_without_a_maximum(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The store comes back empty, and the first generation in it has every node that ran before."""

    def formed(generation: Generation) -> None:
        missing = {place.node for place in old.members} - {place.node for place in generation.members}
        if missing:
            world.fail("6", f"{sorted(missing)} ran in the store before and are not in the first generation")

    empty(world, world.random.uniform(0.2, 3.0))
    world.observe(WhenFormed(formed))


def gate_deserted(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script fails, and everybody of the next world is gone before it starts; spares are there."""

    def formed(generation: Generation) -> None:
        for place in generation.members:
            world.kill_agent(world.nodes[place.node])

    world.observe(WhenFormed(formed))
    if node.workers is not None:
        world.end_worker(node, node.workers, 1)
    world.after(0.5, lambda: comes(world, "late"))


def done_and_fewer_wanted(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """All but one have ended well, and that one takes long; an operator wants fewer nodes, and another node comes."""
    world.job.done_s = world.job.work_s
    for one in members_of(world, old):
        workers, delay = one.workers, 12.0 if one is node else 0.01
        if workers is not None:
            world.after(delay, lambda one=one, workers=workers: world.end_worker(one, workers, 0))  # type: ignore[misc]
    world.after(0.5, lambda: world.scale_to(len(old.members) - 1 if world.seed % 2 else len(old.members) + 1))
    world.after(0.6, lambda: comes(world, "late"))


def grown_twice(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The job grows, and when all workers of the larger world have said whether they listen, one more node comes."""
    grown_at: list[float] = []
    grown_by = world.now + 30.0
    world.observe(WhenFormed(lambda _: grown_at.append(world.now)))
    world.scale_to(len(old.members) + 1)
    fresh = world.start_node("grown0", warm=True)
    text = f"{fresh.name} came and is not taken in"
    watch.expect(world, Expected("3", text, grown_by, lambda view: fresh.name in inside(view)))

    def again() -> None:
        larger = watch.steady(world)
        if larger is None or larger.g == old.g:
            if world.now < grown_by:  # Longer it takes where some workers listen and others do not.
                world.after(0.5, again)
        else:
            world.after(3.2, lambda: _once_more(world, watch, larger, grown_at[0]))

    world.after(1.0, again)


def _once_more(world: World, watch: Calm, larger: Generation, grown_at: float) -> None:
    """A node comes for whom there is room: it is taken in when the pause is over, or at once if there is none."""
    sets = [one.workers for one in members_of(world, larger)]
    if len({workers.listens for workers in sets if workers is not None}) != 1:
        return
    listens = world.nodes[larger.members[0].node].core.facts.memory.listening == larger.g
    given = world.spec.scale_up_interval_s
    every_s = given if given is not None else 0.0 if listens else SCALE_UP_INTERVAL_S
    world.scale_to(len(larger.members) + 1)
    fresh = world.start_node("grown1", warm=True)

    def formed(generation: Generation) -> str:
        soon = generation.why is ChangeReason.SCALE_UP and world.now < grown_at + 0.95 * every_s
        return f"grown again after {world.now - grown_at:.1f} s, {every_s} were due" if soon else ""

    text = f"{fresh.name} came and is not taken in, and a growth is due every {every_s} s"
    until = max(world.now, grown_at + every_s) + world.spec.join_window_s + LINK_PATIENCE_S + 2.0
    watch.expect(world, Expected("3", text, until, lambda view: fresh.name in inside(view), formed))


def bad_host(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Workers fail on one host a moment after each start: the others go on without it."""
    world.job.work_s += 60.0
    bad_for(world, node, 60.0)
    text = f"workers on {node.host} fail again and again, and the others do not go on without it"
    done: Callable[[StoreView], bool] = lambda view: went(view) > old.g + 1 and node.name not in inside(view)  # noqa: E731
    watch.expect(world, Expected("a bad host", text, world.now + 30.0, done))


def drained_at_the_gate(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script fails, and a member of the next world is told to leave as that is made: that is a drain and no loss."""
    if node.workers is None:
        return
    failing = members_of(world, old)[-1]
    told: list[float] = []

    def formed(_: Generation) -> None:
        if node.workers is not None:
            told.append(world.now)
            world.drain(node)

    world.observe(WhenFormed(formed))
    if failing.workers is not None:
        world.end_worker(failing, failing.workers, 1)
    text = f"{node.name} drains, and the others do not start without it"
    done: Callable[[StoreView], bool] = lambda view: went(view) > old.g and node.name not in inside(view)  # noqa: E731
    watch.expect(world, Expected("5", text, world.now + 3 * SOON_S, done))


def old_world_held(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """All members lose their leases and do not reach the store, hear each other, and have slow clocks; others come."""
    for one in members_of(world, old):
        world.set_rate(one, 0.98)
        world.astray_for(one, 60.0)
        if one.lease is not None:
            world.store.revoke(one.lease)
    world.deliver()
    for number in range(world.spec.np.low):
        world.start_node(f"other{number}", warm=True)


def first_without_ports(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member is without its key as it becomes the first of the next world, and comes back as that may start."""
    ttl_s, first = world.spec.lease_ttl_s, members_of(world, old)[0]
    world.astray_for(node, world.random.uniform(1.7, 2.4) * ttl_s)
    world.after(1.4 * ttl_s, lambda: world.kill_agent(first))


def revoke_lost(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An agent dies, its links show it, and the request that ends its lease is lost on its way."""
    world.revokes_lost = True
    world.kill_agent(node)
    text = f"{node.name} is proven dead, and the others do not stop before its lease has ended"
    until = world.now + 0.5 * world.spec.lease_ttl_s
    watch.expect(world, Expected("6", text, until, lambda view: node.name not in inside(view)))


def heard_and_gone(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member that was heard is cut off: when its lease has ended nothing more is waited for."""
    world.kill_node(node)
    gone: list[float] = []

    def look() -> None:
        view = watch.view(world)
        if node.name not in view.members and not gone:
            gone.append(world.now)
            text = f"{node.name} was heard, is not heard any more and has no key, and nobody acts"
            watch.expect(world, Expected("6", text, world.now + 0.6, lambda view: node.name not in inside(view)))
        elif not gone:
            world.after(0.01, look)

    look()


def all_leave_and_one_fails(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Every node is told to leave, and the script of one fails: the others stop at once."""
    nodes = members_of(world, old)
    for one in nodes:
        world.drain(one)
    workers = node.workers
    if workers is not None:
        world.after(0.1, lambda: world.end_worker(node, workers, 1))
    sets = {one.name: one.workers for one in nodes}

    def look() -> None:
        for one in nodes:
            if one.workers is not None and one.workers is sets[one.name] and not one.workers.stopping:
                world.fail("5", f"all drain, a script has failed, and {one.name} goes on")

    world.after(2.0, look)


def echo_of_a_planned_stop(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node drains; another hears late that it is to stop, and its workers fail because their peers are gone."""
    deaf = members_of(world, old)[-1]
    deaf.deaf = True
    world.drain(node)
    charged = watch.view(world)
    budget = (charged.go.value.budget.charged if charged.go is not None else 0) - world.job.failures

    def echoes(_: Generation) -> None:
        workers = deaf.workers
        if workers is not None:
            world.after(0.3, world.echo(deaf, workers))

    world.observe(WhenFormed(echoes))

    def free(generation: Generation, go: Go) -> str:
        own = budget + world.job.failures  # A script may fail while it saves.
        return f"{go.budget} after a planned stop" if go.budget.charged > own else ""

    text = f"{node.name} drains, and nothing starts without it"
    until = world.now + 30.0 + 2 * SOON_S
    watch.expect(world, Expected("10", text, until, lambda view: went(view) > old.g, went=free))


def asks_without_progress(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script asks for a restart, again and again, and makes no progress."""
    CrashLoop(world, 4, 101)
    if node.workers is not None:
        world.end_worker(node, node.workers, 101)


def fails_again(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script fails a moment after each start; one or few restarts are left, or very many."""
    if world.seed % 3:
        spec = msgspec.structs.replace(world.spec, restarts_max=world.seed % 3)
        operator_writes(world, KEYS.spec, encode(spec))
    world.dismiss(Calm)  # No host is to blame for this.
    CrashLoop(world, 12, 1)
    if node.workers is not None:
        world.end_worker(node, node.workers, 1)


def machine_fails_again(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The nursery of some node dies a moment after each start."""
    CrashLoop(world, 6, 0)
    world.kill_nursery(node)


def fails_for_good(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script ends with a code that must not be tried again, or has said that no start would go better."""
    if node.workers is not None:
        world.end_worker(node, node.workers, (FATAL, HOPELESS)[world.seed % 2])


def cannot_start(world: World) -> None:
    """A script ends at its first start."""
    CannotStart(world)


def leases_ended(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The store ends leases that were refreshed in time, of some or of all: nothing is stopped."""
    watch.expect_nothing(world)
    leases_ended_early(world, world.random)
    world.after(1.0, lambda: watch.store_is_back(world))


def outage(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The store is away for less than the limit, or stands still: nothing is stopped."""
    watch.expect_nothing(world)
    seconds = world.random.uniform(1.0, world.spec.etcd_outage_timeout_s * 0.8)
    still = None if world.seed % 2 else lambda: world.random.uniform(0.0, RECONNECT_S)
    world.away_for(seconds, then=lambda: watch.store_is_back(world), still=still)


def done_in_an_outage(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The workers of the first node end well while the store is away; the others take longer, and are not stopped."""
    first, *others = members_of(world, old)

    def end(nodes: Sequence[Node]) -> None:
        for one in nodes:
            if one.workers is not None:
                world.end_worker(one, one.workers, 0)

    def back() -> None:
        watch.store_is_back(world)
        world.after(3.0, lambda: end(others))

    world.job.done_s = world.job.work_s
    world.after(0.5, lambda: end([first]))
    watch.expect_nothing(world)
    world.away_for(0.8 * world.spec.etcd_outage_timeout_s, then=back)


def astray(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member does not reach the store for less than the limit: nothing is stopped."""
    if node.workers is not None and world.links:
        watch.expect_nothing(world)
        seconds = world.random.uniform(1.0, world.spec.etcd_outage_timeout_s * 0.8)
        world.astray_for(node, seconds, then=lambda: watch.store_is_back(world))


def astray_and_late(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member does not reach the store, and its agent pauses now and then for longer than an answer may take."""
    interval_s = world.spec.lease_ttl_s / ASKS_PER_TTL
    watch.expect_nothing(world)
    last = world.spec.etcd_outage_timeout_s * 0.6
    world.astray_for(node, last + 3 * interval_s, then=lambda: watch.store_is_back(world))

    def pause() -> None:
        node.agent_frozen = True
        world.after(world.random.uniform(0.3, 0.8) * interval_s, lambda: thaw(world, node))

    at = world.spec.lease_ttl_s + 3 * interval_s  # Its key is gone by then, and it has answered.
    while at < last:
        world.after(at, pause)
        at += world.random.uniform(3.0, 4.0) * interval_s


def astray_and_silent(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member that does not reach the store answers; its machine freezes then, or long after it reaches it again."""
    ttl_s = world.spec.lease_ttl_s
    interval_s, is_back = ttl_s / ASKS_PER_TTL, world.seed % 2
    world.astray_for(node, 2 * ttl_s if is_back else 10 * ttl_s)

    def silent() -> None:
        node.frozen = True
        limit_s = (ttl_s if is_back else 2 * interval_s) + NOTICED_S
        text = f"{node.name} is silent, and no generation without it is formed within {limit_s:g} s"
        watch.expect(world, Expected("6", text, world.now + limit_s, lambda view: node.name not in inside(view)))

    world.after((5 if is_back else 1.6) * ttl_s + world.random.uniform(0.0, interval_s), silent)


def taken_away(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Somebody deletes or damages the key of a member: nothing is stopped."""
    watch.expect_nothing(world)
    take_away(world, world.random, node.name)
    world.after(2 * world.spec.lease_ttl_s, lambda: watch.store_is_back(world))


def fails_in_a_planned_stop(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node drains, and while all save a worker of another fails by itself, and its neighbours stay."""
    world.drain(node)
    failing = members_of(world, old)[-1]
    began = world.now

    def fail() -> None:
        workers = failing.workers
        if workers is not None and workers.asked and workers.generation.g == old.g:
            workers.failing = workers.alone = True
            world.end_worker(failing, workers, 1)
            text = f"a planned stop went wrong on {failing.name}, and the others do not start"
            watch.expect(world, Expected("6", text, world.now + 3 * SOON_S, lambda view: went(view) > old.g))
        elif world.now < began + SOON_S:
            world.after(0.005, fail)

    fail()


def run_again(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The job is done, and its nodes come once more, to run it again."""
    world.job.done_s = world.job.work_s
    for one in members_of(world, old):
        workers = one.workers
        if workers is not None:
            world.end_worker(one, workers, 0)
    world.runs_again = True

    def again() -> None:
        if not all(one.exit_code is not None or not one.alive for one in world.nodes.values()):
            world.after(0.2, again)
            return
        world.runs_again = False
        world.job.done_s = 0.0
        for number in range(world.size):
            world.start_node(f"h{number}", warm=True, rerun=True)

    world.after(0.5, again)


def no_key_can_be_written(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node's lease is lost, and what it would have to compare cannot be read: it gets a lease and no key."""
    ttl_s = world.spec.lease_ttl_s
    stood = world.store.list(KeyRange.key(KEYS.incarnation)).entries[0]
    if node.lease is None:
        return
    world.store.txn((), (Put(KEYS.incarnation, b"\xff{"),))
    world.deliver()
    lease = node.lease
    world.after(0.05, lambda: world.store.revoke(lease))
    world.after(0.06, world.deliver)

    def look() -> None:
        if (
            node.workers is not None
            and node.core.phase is Phase.RUNNING
            and not node.core.facts.registration.registered
        ):
            world.fail("8", f"{node.name} has no key for longer than a lease, and its workers run")

    world.after(1.2 * ttl_s + 0.5, look)

    def mend() -> None:
        world.store.txn((), (Put(KEYS.incarnation, stood.value),))
        world.deliver()

    world.after(2 * ttl_s + 1.0, mend)
