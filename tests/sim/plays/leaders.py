"""Plays about the leader: which node leads, and what becomes of its key."""

from __future__ import annotations

from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.model import Generation, Leader
from elastic.core.view import encode
from tests.sim.accidents import alive
from tests.sim.calm import NOTICE_S, STOP_S, Calm, Expected, crash, inside, went
from tests.sim.nodes import KEYS, Node
from tests.sim.plays.meetings import members_of
from tests.sim.world import World

ELECTED_S = 1.0
"""A new leader is there after this time at the latest."""


def leader_of(world: World, watch: Calm) -> Node | None:
    """The node that leads, as far as the store says."""
    stored = watch.view(world).leader
    return world.nodes[stored.value.node] if stored is not None else None


def lead(world: World, node: Node) -> None:
    """This node leads from now on, as if it had been the first to take the key."""
    if node.lease is None:
        return
    created, member = node.core.facts.registration.create_revision, node.core.facts.me.member
    leader = Leader(node=node.name, host=node.host, link=member.link, created=created)
    world.log(f"{node.name} leads")
    world.store.txn((), (Put(KEYS.leader, encode(leader), node.lease),))
    world.deliver()


def leader_is_the_last(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The last member leads, and dies: the first takes the lead."""
    last = members_of(world, old)[-1]
    lead(world, last)
    world.after(0.5, lambda: crash(world, watch, last, old))


def revoked_as_the_first_dies(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The second member becomes the first while it is not registered: its lease is revoked as the first one dies.

    The last member leads, and hears the second. Where the workers meet is known once that one is registered again.
    """
    first, second, *_, last = members_of(world, old)
    lead(world, last)

    def strike() -> None:
        if second.lease is not None:
            world.store.revoke(second.lease)
            world.deliver()
        crash(world, watch, first, old)

    world.after(1.0, strike)


def leader_is_a_spare(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A spare leads, and the store is away: it vouches for all. Then a member dies."""
    spare = next((one for one in alive(world) if old.index(one.name) is None), None)
    if spare is None:
        return
    lead(world, spare)
    workers = {one.name: one.workers for one in members_of(world, old)}

    def back() -> None:
        stopped = [name for name, own in workers.items() if world.nodes[name].workers is not own]
        if stopped and all(one.hears for one in alive(world)):
            world.fail("7", f"{stopped} were stopped in an outage while the spare {spare.name} leads")
        world.after(3.0, lambda: crash(world, watch, node, old))

    world.after(0.5, lambda: world.away_for(world.spec.etcd_outage_timeout_s * 0.6, then=back))


def leader_cut_off(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The leader alone does not reach the store, and a member dies: another leads once the leader's lease has ended."""
    leader = leader_of(world, watch)
    if leader is None:
        return
    dead = next(one for one in members_of(world, old) if one is not leader)
    world.astray_for(leader, 2 * world.spec.lease_ttl_s)
    world.after(0.2, lambda: world.kill_node(dead))
    text = f"{leader.name} leads without the store, {dead.name} died, and nobody acts on it"
    until = world.now + 1.3 * world.spec.lease_ttl_s + NOTICE_S + 1.0
    watch.expect(world, Expected("3", text, until, lambda view: dead.name not in inside(view)))


def leader_key_deleted(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Somebody deletes the leader's key, or what says who leads cannot be read: another leads, and nothing stops."""
    watch.expect_nothing(world)
    broken = Put(KEYS.leader, b"\xff")
    world.store.txn((), (broken if world.seed % 2 else Delete(KeyRange.key(KEYS.leader)),))
    world.deliver()
    _leads_again(world, watch)
    world.after(ELECTED_S, lambda: watch.store_is_back(world))


def leader_member_deleted(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Somebody deletes the leader's key as a member, and it leads on: nothing stops."""
    leader = leader_of(world, watch)
    if leader is None or not world.links:
        return
    watch.expect_nothing(world)
    world.store.txn((), (Delete(KeyRange.key(KEYS.member(leader.name))),))
    world.deliver()
    _leads_again(world, watch)
    world.after(ELECTED_S, lambda: watch.store_is_back(world))


def _leads_again(world: World, watch: Calm) -> None:
    def look() -> None:
        leader = leader_of(world, watch)
        if leader is None or not leader.alive:
            world.fail("leader", f"nobody leads {ELECTED_S} s after the key was gone: {leader}")

    world.after(ELECTED_S, look)


def rack_lost(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The leader and half of the members lose their power, or their agents die: the others go on."""
    members = members_of(world, old)
    leader = leader_of(world, watch)
    rack = [one for one in members if one is leader or members.index(one) % 2 == 0]
    at_once = world.seed % 2 == 0 and world.links
    for one in rack:
        (world.kill_agent if at_once else world.kill_node)(one)
    until = world.now + STOP_S + (0.5 if at_once else 1.3 * world.spec.lease_ttl_s)
    lost = {one.name for one in rack}
    text = f"{sorted(lost)} were lost with the leader, and the others do not go on"
    watch.expect(world, Expected("6", text, until, lambda view: went(view) > old.g and not lost & inside(view)))
