"""What goes wrong with the store, by name."""

from __future__ import annotations

import random

from elastic.core.kv import Delete, KeyRange
from tests.sim.accidents import (
    EmptyAtStep,
    alive,
    cut_for,
    empty,
    operator_writes,
    pick,
    start,
    take_away,
)
from tests.sim.faults import join_storm, leave_and_join, worker_fails
from tests.sim.nodes import KEYS
from tests.sim.world import World

RECONNECT_S = 0.9
"""After a store is back, every node has connected to it again: between two tries gRPC waits for 0.6 s at most
(`elastic.store.etcd.endpoint`). Who takes longer than `elastic.core.membership.situation.RETURN_S` may be taken for
lost."""


def late_writes(world: World, rng: random.Random) -> None:
    """For some seconds, answers are lost and writes arrive long after their sender timed out."""
    world.late_answers = rng.choice([0.2, 0.5])

    def over() -> None:
        world.late_answers = 0.0

    world.after(rng.uniform(2, 10), over)


def lease_lost_while_alive(world: World, rng: random.Random) -> None:
    """A user revokes the lease of a healthy node."""
    node = pick(world, rng)
    if node is not None and node.lease is not None:
        world.log(f"{node.name}: its lease is revoked")
        world.store.revoke(node.lease)
        world.deliver()


def leases_ended_early(world: World, rng: random.Random) -> None:
    """A leader of the store that had been replaced expires leases that were renewed in time."""
    share = rng.choice([0.5, 1.0])
    for node in alive(world):
        if node.lease is not None and rng.random() < share:
            world.log(f"{node.name}: its lease is revoked")
            world.store.revoke(node.lease)
    world.deliver()


def leader_change(world: World, rng: random.Random) -> None:
    """The store does not answer for a moment; then every lease starts again."""
    world.away_for(rng.uniform(0.3, 2.5))


def outage_short(world: World, rng: random.Random) -> None:
    """The store is away for less than the timeout."""
    world.away_for(rng.uniform(3.0, world.spec.etcd_outage_timeout_s * 0.8))


def outage_long(world: World, rng: random.Random) -> None:
    """The store is away for longer than the timeout."""
    world.away_for(world.spec.etcd_outage_timeout_s + rng.uniform(8.0, 20.0))


def store_stands_still(world: World, rng: random.Random) -> None:
    """The store is suspended for longer than a lease; when it resumes, every lease has expired."""
    world.away_for(rng.uniform(1.0, 4.0) * world.spec.lease_ttl_s, still=lambda: rng.uniform(0.0, 2 * RECONNECT_S))


def store_empty(world: World, rng: random.Random) -> None:
    """The store comes back empty."""
    empty(world, rng.uniform(0.2, 3.0))


def store_empty_again(world: World, rng: random.Random) -> None:
    """The store comes back empty, and empty once more soon afterwards."""
    empty(world, rng.uniform(0.0, 1.0))
    world.after(rng.uniform(1.0, 10.0), lambda: empty(world, rng.uniform(0.0, 2.0)))


def store_empty_for_some(world: World, rng: random.Random) -> None:
    """The store comes back empty while nodes are cut off; they return to a job that has formed again."""
    for node in alive(world):
        if rng.random() < 0.5 and not node.cut:
            cut_for(world, node, rng.uniform(3, 30))
    world.after(rng.uniform(0.0, 2.0), lambda: empty(world, rng.uniform(0.2, 3.0)))


def store_empty_at_a_step(world: World, rng: random.Random) -> None:
    """The store fails during a write, answered or not, and comes back empty."""
    EmptyAtStep(world, rng.choice(["form", "go", "record", "register"]), rng.uniform(0.0, 1.0))
    if rng.random() < 0.7:
        rng.choice([worker_fails, leave_and_join, join_storm])(world, rng)


def late_writes_into_an_empty_store(world: World, rng: random.Random) -> None:
    """Writes are delayed while the store is replaced, and arrive at the empty one."""
    late_writes(world, rng)
    rng.choice([worker_fails, leave_and_join, join_storm])(world, rng)
    world.after(rng.uniform(0.05, 1.0), lambda: empty(world, rng.uniform(0.0, 1.0)))


def proposal_outlives_its_proposer(world: World, rng: random.Random) -> None:
    """The leader's writes are delayed, and its lease is revoked before they arrive."""
    first = next((node for node in alive(world) if node.complete), None)
    if first is None:
        return
    world.late_answers = 0.9

    def over() -> None:
        world.late_answers = 0.0

    def revoke() -> None:
        if first.lease is not None:
            world.store.revoke(first.lease)
            world.deliver()

    world.after(3.0, over)
    world.after(rng.uniform(0.1, 0.6), revoke)
    worker_fails(world, rng)


def member_taken_away(world: World, rng: random.Random) -> None:
    """A user deletes or damages the key of a member whose lease is alive; only the member itself restores it."""
    node = pick(world, rng)
    if node is not None and world.store_up:
        take_away(world, rng, node.name)


def damaged_document(world: World, rng: random.Random) -> None:
    """A record becomes unreadable until a person restores it."""
    newest = KEYS.root + world.spec.generation_type.document_name
    key = rng.choice([KEYS.spec, newest, KEYS.go, KEYS.incarnation, KEYS.member("junk")])
    found = world.store.list(KeyRange.key(key)).entries
    if not world.store_up or (not found and key != KEYS.member("junk")) or world.verdict_there():
        return
    if found and found[0].value == b"\xff{":  # It is damaged, and will be put back.
        return
    if key == KEYS.incarnation and world.seed % 2:  # It is deleted, and put back; meanwhile there is something to do.
        world.store.txn((), (Delete(KeyRange.key(key)),))
        world.deliver()
        worker_fails(world, rng)
    else:
        operator_writes(world, key, b"\xff{")
    store = world.store

    def mend() -> None:
        now = world.store.list(KeyRange.key(key)).entries
        if world.store is store and (not now or now[0].value == b"\xff{"):
            if found:
                operator_writes(world, key, found[0].value)
            else:
                world.store.txn((), (Delete(KeyRange.key(key)),))
                world.deliver()

    world.after(rng.uniform(1.0, 8.0), mend)


def spec_deleted(world: World, rng: random.Random) -> None:
    """A user deletes the spec; the next node that joins writes it again."""
    world.store.txn((), (Delete(KeyRange.key(KEYS.spec)),))
    world.deliver()
    world.after(rng.uniform(0.5, 5.0), lambda: start(world, "respec"))


def deaf_watch(world: World, rng: random.Random) -> None:
    """A watch delivers no more events, without an error, until the next listing."""
    node = pick(world, rng)
    if node is not None:
        node.deaf = True
