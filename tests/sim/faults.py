"""What goes wrong with nodes, workers and people, by name."""

from __future__ import annotations

import random
import zlib

from elastic.core.model import FinalStatus, Verdict
from elastic.core.view import encode
from tests.sim.accidents import (
    EVENTS_MIN,
    CrashLoop,
    DoneAndGone,
    KillAtStep,
    Overtaken,
    alive,
    apart_for,
    bad_for,
    cut_for,
    deaf_for,
    operator_writes,
    pick,
    start,
    thaw,
    worker_ends,
)
from tests.sim.checks import Promises
from tests.sim.nodes import HOPELESS, KEYS, KILL_S, Node
from tests.sim.world import World

DEADLINES_S = (1.0, 3.2, 4.0, 6.0, 10.0, 30.0)
"""Some drains leave a node no more time than one of these."""


def crash_agent(world: World, rng: random.Random) -> None:
    """SIGKILL to an agent."""
    node = pick(world, rng)
    if node is not None:
        world.kill_agent(node)


def power_off(world: World, rng: random.Random) -> None:
    """A whole node disappears."""
    node = pick(world, rng)
    if node is not None:
        world.kill_node(node)


def restart_on_same_host(world: World, rng: random.Random) -> None:
    """An agent is killed and restarted on its host at once; the host shows that the old one is dead."""
    node = pick(world, rng)
    if node is None:
        return
    world.kill_agent(node)

    def again() -> None:
        fresh = world.start_node(node.host)
        world.after(KILL_S + 0.1, lambda: world.prove_dead_to(fresh, node))

    world.after(rng.uniform(0.05, 1.0), again)


def freeze_agent(world: World, rng: random.Random) -> None:
    """SIGSTOP to the agent alone; fork server and workers continue."""
    node = pick(world, rng)
    if node is not None and node.hears:
        node.agent_frozen = True
        world.log(f"{node.name}: agent frozen")
        world.after(rng.choice([0.5, 3.0, rng.uniform(5, 25)]), lambda: thaw(world, node))


def freeze_node(world: World, rng: random.Random) -> None:
    """The host is suspended."""
    node = pick(world, rng)
    if node is not None and node.hears:
        node.frozen = True
        world.log(f"{node.name}: node frozen")
        world.after(rng.choice([0.5, 3.0, rng.uniform(5, 25)]), lambda: thaw(world, node))


def agent_held_up(world: World, rng: random.Random) -> None:
    """An agent, or its host, is suspended for a moment: shorter than the silence timeout, or a little longer."""
    node = pick(world, rng)
    if node is not None and node.hears:
        _hold_up(
            world, node, whole=rng.random() < 0.5, seconds=rng.choice([rng.uniform(0.1, 0.9), rng.uniform(1.0, 3.0)])
        )


def _hold_up(world: World, node: Node, *, whole: bool, seconds: float) -> None:
    node.frozen, node.agent_frozen = whole, not whole
    world.log(f"{node.name}: {'machine' if whole else 'agent'} held up for {seconds:.1f} s")
    world.after(seconds, lambda: thaw(world, node))


def leader_held_up(world: World, rng: random.Random) -> None:
    """The leader is suspended for some seconds, and still believes that it leads when it wakes up."""
    leader = Promises().view(world).leader
    node = world.nodes.get(leader.value.node) if leader is not None else None
    if node is not None and node.hears:
        _hold_up(world, node, whole=rng.random() < 0.5, seconds=rng.uniform(0.5, 8.0))


def slow_network(world: World, rng: random.Random) -> None:
    """Messages of a node over links are late for a while: jitter, or lost packets."""
    node = pick(world, rng)
    if node is not None:
        world.late[node.name] = world.now + rng.uniform(5, 30), rng.choice([0.3, 0.8, 2.0])


def link_blocked(world: World, rng: random.Random) -> None:
    """Two nodes cannot reach each other for a while; other nodes can reach both."""
    nodes = alive(world)
    if len(nodes) > 1:
        one, other = rng.sample(nodes, 2)
        world.log(f"nothing comes through between {one.name} and {other.name}")
        world.slow_links[frozenset((one.name, other.name))] = world.now + rng.uniform(1.0, 5.0)


def many_silent(world: World, rng: random.Random) -> None:
    """A rack or a switch fails: several nodes are switched off, suspended or cut off at the same moment."""
    nodes = alive(world)
    some = rng.sample(nodes, min(len(nodes), rng.randint(2, 4)))
    how, seconds = rng.choice(["off", "cut", "frozen"]), rng.uniform(1.0, 20.0)
    for node in some:
        if not node.hears or node.cut:
            continue
        if how == "off":
            world.kill_node(node)
        elif how == "cut":
            cut_for(world, node, seconds)
        else:
            _hold_up(world, node, whole=True, seconds=seconds)


def evicted_and_another_comes(world: World, rng: random.Random) -> None:
    """An agent is suspended until it is evicted, and another one starts on its host while its workers run."""
    node = pick(world, rng)
    if node is not None and node.hears:
        _hold_up(world, node, whole=False, seconds=rng.uniform(2.0, 12.0))
        world.after(rng.uniform(1.0, 3.0), lambda: start(world, node.host))


def deaf(world: World, rng: random.Random) -> None:
    """A node receives nothing from some of the others, or from all, for a while; its own messages arrive."""
    nodes = alive(world)
    if len(nodes) > 1:
        node = rng.choice(nodes)
        others = [one for one in nodes if one is not node]
        some = rng.choice([others, rng.sample(others, rng.randint(1, len(others)))])
        deaf_for(world, node, some, rng.choice([1.0, rng.uniform(2.0, 12.0), rng.uniform(12.0, 40.0)]))


def clock_runs_wrong(world: World, rng: random.Random) -> None:
    """A node's clock runs 2 % too fast or too slow."""
    node = pick(world, rng)
    if node is not None:
        world.set_rate(node, rng.choice([0.98, 1.02]))


def cut_off(world: World, rng: random.Random) -> None:
    """A node can reach neither the store nor any other node."""
    node = pick(world, rng)
    if node is not None and not node.cut:
        cut_for(world, node, rng.choice([1.0, rng.uniform(3, 30)]))


def astray(world: World, rng: random.Random) -> None:
    """A node cannot reach the store; its links to other nodes work."""
    node = pick(world, rng)
    if node is not None and not node.astray:
        world.astray_for(node, rng.choice([1.0, rng.uniform(3, 40)]))


def unlinkable(world: World, rng: random.Random) -> None:
    """A node joins whose agent no other node can connect to (a firewall)."""
    world.start_node("walled").unlinkable = True


def split(world: World, rng: random.Random) -> None:
    """A node can reach the store and not the other hosts; usually for long."""
    node = pick(world, rng)
    if node is not None and not node.cut:
        apart_for(world, node, rng.choice([3.0, rng.uniform(15, 40), rng.uniform(40, 150)]))


def join_storm(world: World, rng: random.Random) -> None:
    """Several nodes join at the same moment."""
    for number in range(rng.randint(2, 4)):
        if len(alive(world)) < world.size + 3:
            world.after(rng.uniform(0, 0.2), lambda number=number: start(world, f"storm{number}"))  # type: ignore[misc]


def leave_and_join(world: World, rng: random.Random) -> None:
    """One node drains, another joins."""
    node = pick(world, rng)
    if node is not None:
        world.drain(node, _time_left(world))
        start(world, "new")


def drain(world: World, rng: random.Random) -> None:
    """SIGTERM to one agent, or to all at once; or their hosts are preempted."""
    nodes = alive(world)
    for node in nodes if rng.random() < 0.1 else nodes[:1] if rng.random() < 0.3 else [rng.choice(nodes or [None])]:
        if node is not None:
            world.drain(node, _time_left(world))


def false_proof(world: World, rng: random.Random) -> None:
    """Links report that the process of a healthy node has exited."""
    node = pick(world, rng)
    if node is not None:
        world.prove_falsely(node)


def nursery_dies(world: World, rng: random.Random) -> None:
    """The fork server of a node dies while its agent lives, and its workers with it; it is restarted."""
    node = pick(world, rng)
    if node is not None:
        world.kill_nursery(node)


def everybody_astray(world: World, rng: random.Random) -> None:
    """No node can reach the store, their links work, and nodes join that none of them knows."""
    for node in alive(world):
        if node.lease is not None and rng.random() < 0.3:
            world.store.revoke(node.lease)
        world.astray_for(node, rng.uniform(20, 60))
    world.deliver()
    for number in range(world.size):
        world.after(rng.uniform(0, 8.0), lambda number=number: start(world, f"other{number}"))  # type: ignore[misc]


def join_while_astray(world: World, rng: random.Random) -> None:
    """A member cannot reach the store for longer than its lease, and meanwhile nodes join for which there is room."""
    node = pick(world, rng)
    if node is None or node.astray:
        return
    world.astray_for(node, 2 * world.spec.lease_ttl_s + rng.uniform(5, 15))
    world.scale_to(world.size + 1)
    for number in range(2):
        at = world.spec.lease_ttl_s * rng.uniform(0.5, 3.0)
        world.after(at, lambda number=number: start(world, f"meanwhile{number}"))  # type: ignore[misc]


def loss_in_a_planned_stop(world: World, rng: random.Random) -> None:
    """A node drains, and while the others save another node is lost."""
    nodes = [node for node in alive(world) if node.workers is not None]
    if len(nodes) > 2:
        leaving, lost = rng.sample(nodes, 2)
        world.drain(leaving)
        how = rng.choice([world.kill_agent, world.kill_node, world.kill_nursery])
        world.after(rng.uniform(0.2, 1.5), lambda: how(lost) if lost.alive else None)


def two_operators(world: World, rng: random.Random) -> None:
    """Two users request different numbers of nodes at the same moment, or one of them a stop."""
    scale(world, rng)
    second = scale if rng.random() < 0.8 else operator_stops
    world.after(rng.uniform(0.0, 0.05), lambda: second(world, rng))


def worker_fails(world: World, rng: random.Random) -> None:
    """A script fails on its own."""
    worker_ends(world, rng, 1)


def crash_loop(world: World, rng: random.Random) -> None:
    """A script fails again and again, a moment after each start, or requests a restart, or its fork server dies."""
    CrashLoop(world, rng.choice([5, 12]), rng.choice([1, 1, 101, 0]))
    worker_ends(world, rng, 1)


def bad_host(world: World, rng: random.Random) -> None:
    """For a time, workers on one host fail a moment after each start."""
    node = pick(world, rng)
    if node is not None and world.steps > EVENTS_MIN:
        bad_for(world, node, rng.uniform(3.0, 150.0))


def worker_asks_restart(world: World, rng: random.Random) -> None:
    """A script requests a restart."""
    worker_ends(world, rng, 101)


def worker_hangs(world: World, rng: random.Random) -> None:
    """A worker makes no more steps; its agent detects it."""
    nodes = [node for node in alive(world) if node.workers is not None and not node.workers.stopping]
    if nodes and world.steps > EVENTS_MIN:
        world.hang_worker(rng.choice(nodes))


def worker_fatal(world: World, rng: random.Random) -> None:
    """A script exits with a code that must not be retried."""
    if world.steps > EVENTS_MIN:
        worker_ends(world, rng, 9)


def worker_hopeless(world: World, rng: random.Random) -> None:
    """A script exits because of a permanent error, and has reported it."""
    if world.steps > EVENTS_MIN:
        worker_ends(world, rng, HOPELESS)


def drain_as_a_worker_fails(world: World, rng: random.Random) -> None:
    """SIGTERM to one agent at the moment in which a worker fails on another."""
    nodes = [node for node in alive(world) if node.workers is not None]
    if len(nodes) > 1 and world.steps > EVENTS_MIN:
        failing, leaving = rng.sample(nodes, 2)
        assert failing.workers is not None
        world.end_worker(failing, failing.workers, 1)
        world.after(rng.uniform(0.001, 0.008), lambda: world.drain(leaving))


def proposer_lost(world: World, rng: random.Random) -> None:
    """The leader is killed during its next proposal."""
    KillAtStep(world, rng.choice(["form", "go", "verdict", "record", "register"]), rng.random() < 0.5)
    if rng.random() < 0.7:
        rng.choice([worker_fails, leave_and_join, join_storm])(world, rng)


def wrong_slots(world: World, rng: random.Random) -> None:
    """A node with a different number of GPUs joins; it is rejected."""
    world.start_node("wide", slots=world.spec.slots + 1)


def impatient_node(world: World, rng: random.Random) -> None:
    """A node joins that times out when no world forms."""
    world.start_node("impatient", join_timeout_s=rng.uniform(2.0, 6.0))


def late_drain(world: World, rng: random.Random) -> None:
    """A node is asked to leave at the moment in which it joins, or before it has reached the store."""
    node = world.start_node("brief")
    if rng.random() < 0.4:
        cut_for(world, node, rng.uniform(15, 30))
    world.after(rng.uniform(0.0, 0.01), lambda: world.drain(node))


def drain_while_astray(world: World, rng: random.Random) -> None:
    """A node is asked to leave while it cannot reach the store, so that no other node is notified."""
    node = pick(world, rng)
    if node is not None and not node.astray:
        world.astray_for(node, rng.uniform(20, 60))
        world.after(rng.uniform(0.0, 3.0), lambda: world.drain(node, _time_left(world)))


def _time_left(world: World) -> float | None:
    """In how many seconds a machine goes; None: it stays. It takes no randomness from what else happens."""
    part = zlib.crc32(f"{world.seed} {world.steps}".encode()) % 24
    return None if part >= len(DEADLINES_S) else DEADLINES_S[part]


def hold(world: World, rng: random.Random) -> None:
    """A user requests more nodes than there are; the job holds, with a node in it that has a short timeout."""
    for number in range(2):
        world.start_node(f"brisk{number}", join_timeout_s=rng.uniform(2.0, 6.0), warm=True)
    high = len(alive(world)) + 2
    world.after(rng.uniform(0.2, 4.0), lambda: world.scale_to(high, low=high))
    world.after(rng.uniform(4.0, 6.0), lambda: worker_fails(world, rng))


def done_and_gone(world: World, rng: random.Random) -> None:
    """A node dies at the moment in which it has recorded that its workers completed."""
    DoneAndGone(world)


def overtaken(world: World, rng: random.Random) -> None:
    """A transaction is delayed, and its preconditions no longer hold when it arrives."""

    def scaled(_: Node) -> None:
        scale(world, rng)

    def stopped(_: Node) -> None:
        operator_stops(world, rng)

    def done(_: Node) -> None:
        sets = [node.workers for node in alive(world) if node.workers is not None]
        whole = [one for one in sets if len(world.peers(one)) == len(one.generation.members)]
        if world.steps < EVENTS_MIN or not whole:
            return  # Nobody ends well before all are there.
        world.job.done_s = world.job.work_s
        for node in alive(world):
            if (workers := node.workers) is not None and workers in whole:
                delay = rng.choice([0.0, rng.uniform(0.0, 2.0)])
                world.after(delay, lambda node=node, workers=workers: world.end_worker(node, workers, 0))  # type: ignore[misc]

    def revoked(node: Node) -> None:
        if node.lease is not None:
            world.store.revoke(node.lease)
            world.deliver()

    def another_revoked(node: Node) -> None:
        others = [one for one in alive(world) if one is not node]
        if others:
            revoked(rng.choice(others))

    kind = rng.choice(["form", "form", "form", "go", "go", "verdict", "record", "register", "say"])
    Overtaken(world, kind, rng.choice([scaled, stopped, done, revoked, another_revoked]), rng.choice([0.05, 0.8]))
    rng.choice([worker_fails, leave_and_join, join_storm, scale])(world, rng)


def lease_lost_and_slow_watch(world: World, rng: random.Random) -> None:
    """A user revokes the lease of a node whose watch and fork server are late or silent for some seconds."""
    node = pick(world, rng)
    if node is not None and node.lease is not None:
        node.slow_until = world.now + rng.uniform(3, 8)
        world.store.revoke(node.lease)
        world.deliver()


def brisk_and_scaled(world: World, rng: random.Random) -> None:
    """Nodes with a short timeout join, and a user scales them away; the others take their time to stop."""
    world.scale_to(len(alive(world)) + 2)
    for number in range(2):
        world.start_node(f"brisk{number}", join_timeout_s=rng.uniform(1.0, 1.5), warm=True)
    world.after(rng.uniform(4.0, 12.0), lambda: world.scale_to(max(1, len(alive(world)) - 2)))


def scale(world: World, rng: random.Random) -> None:
    """A user requests another number of nodes."""
    view = Promises().view(world)
    if view.spec is not None and view.verdict is None:
        most = world.size + 1
        world.scale_to(rng.randint(min(view.spec.value.np.low, most), most))


def operator_stops(world: World, rng: random.Random) -> None:
    """A user stops the job."""
    view = Promises().view(world)
    if view.spec is not None and view.verdict is None and world.steps > EVENTS_MIN:
        verdict = Verdict(status=FinalStatus.FAILED, reason="stopped", run=1, g=0, at=0.0)
        operator_writes(world, KEYS.verdict, encode(verdict))
