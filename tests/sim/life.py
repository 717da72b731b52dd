"""The schedule of one run: nodes start, faults strike, all is healed, the job ends."""

from __future__ import annotations

import random
from collections.abc import Callable

from elastic.core.view import encode
from tests.sim import faults, storefaults
from tests.sim.accidents import (
    EVENTS_MIN,
    DoneAndGone,
    EmptyAtStep,
    KillAtStep,
    Overtaken,
    alive,
    bad_for,
    cut_for,
    operator_writes,
    pick,
    start,
    take_away,
)
from tests.sim.calm import SITUATIONS, Calm, split
from tests.sim.checks import Promises
from tests.sim.ends import Ends
from tests.sim.evictions import Evictions
from tests.sim.nodes import KEYS
from tests.sim.rules import Rules
from tests.sim.world import World

CHAOS_S = 70.0
HEALED_S = 900.0
"""After all faults are over the job ends within this time, the longest wait for an old world included."""

OF_HEARTBEATS: tuple[Callable[[World, random.Random], None], ...] = (
    faults.agent_held_up,
    faults.leader_held_up,
    faults.slow_network,
    faults.link_blocked,
    faults.many_silent,
    faults.evicted_and_another_comes,
)
"""Faults that heartbeats notice."""
FAULTS: tuple[Callable[[World, random.Random], None], ...] = (
    faults.crash_agent,
    faults.power_off,
    faults.restart_on_same_host,
    faults.freeze_agent,
    faults.freeze_node,
    faults.clock_runs_wrong,
    faults.cut_off,
    faults.astray,
    faults.unlinkable,
    storefaults.deaf_watch,
    storefaults.late_writes,
    storefaults.lease_lost_while_alive,
    storefaults.leases_ended_early,
    storefaults.leader_change,
    storefaults.outage_short,
    storefaults.outage_long,
    storefaults.store_stands_still,
    storefaults.store_empty,
    storefaults.store_empty_again,
    storefaults.store_empty_for_some,
    storefaults.store_empty_at_a_step,
    storefaults.late_writes_into_an_empty_store,
    faults.nursery_dies,
    faults.everybody_astray,
    faults.join_while_astray,
    faults.loss_in_a_planned_stop,
    faults.two_operators,
    faults.join_storm,
    faults.leave_and_join,
    faults.drain,
    faults.false_proof,
    faults.worker_fails,
    faults.worker_asks_restart,
    faults.worker_hangs,
    faults.worker_fatal,
    faults.worker_hopeless,
    faults.crash_loop,
    faults.bad_host,
    faults.proposer_lost,
    faults.drain_as_a_worker_fails,
    storefaults.proposal_outlives_its_proposer,
    faults.wrong_slots,
    faults.impatient_node,
    faults.late_drain,
    faults.done_and_gone,
    faults.overtaken,
    faults.lease_lost_and_slow_watch,
    faults.brisk_and_scaled,
    faults.drain_while_astray,
    faults.hold,
    faults.scale,
    faults.operator_stops,
    storefaults.damaged_document,
    storefaults.spec_deleted,
    storefaults.member_taken_away,
    faults.split,
    *OF_HEARTBEATS,
    faults.deaf,
)


RARE = {
    "outage_long": 0.3,
    "store_empty": 0.4,
    "crash_loop": 0.5,
    "bad_host": 0.5,
    "operator_stops": 0.2,
    "two_operators": 0.5,
    "worker_fatal": 0.3,
    "worker_hopeless": 0.3,
    "done_and_gone": 2.0,
    "overtaken": 3.0,
    "split": 0.0,
    "deaf": 0.0,
    **dict.fromkeys((fault.__name__ for fault in OF_HEARTBEATS), 0.0),
}
"""How often a fault strikes among others; 1.0 is left out. A split has seeds of its own (`SPLIT_SEEDS`), and so
has a way that is closed in one direction (`DEAF_SEEDS`); those of heartbeats are drawn apart, where there are
heartbeats."""
SPLIT_SEEDS = 8
"""Of so many seeds one has a split network besides, and one of the calm ones so many times as rare has nothing else."""
DEAF_SEEDS = 16
"""Of so many seeds one has a node besides that does not hear others, if there are heartbeats."""
WEIGHTS = tuple(RARE.get(fault.__name__, 1.0) for fault in FAULTS)


def run_seed(seed: int, *, defect: str = "") -> World:
    """Run one whole life of a job; raises `Violation`. The same seed gives the same run."""
    world = make(seed, defect=defect)
    live(world)
    return world


def make(seed: int, *, defect: str = "") -> World:
    """A world before anything has happened, watched by every guarantee."""
    world = World(seed, defect=defect)
    world.observe(Promises(), Rules(), Ends(), Evictions())
    return world


def live(world: World) -> None:
    """Let everything happen: nodes start, faults strike, all is healed, the job ends."""
    rng = world.random
    for number in range(world.size):
        delay = 0.0 if rng.random() < 0.5 else rng.uniform(0, 6.0)
        world.after(delay, lambda number=number: start(world, f"h{number}"))  # type: ignore[misc]
    if world.seed % 4 == 0:
        _calm(world, rng)
    else:
        chaos(world, rng)
    world.run_to(CHAOS_S + 40.0, stop=lambda: over(world))
    heal(world)
    world.run_to(world.now + HEALED_S, stop=lambda: over(world))
    if not over(world):
        waiting = {node.name: f"{node.core.phase} {node.core.facts.succession.decision}" for node in alive(world)}
        world.fail("liveness", f"the faults are healed and the job does not end: {waiting}")
    if world.steps < EVENTS_MIN and not world.counts["fault crash_loop"]:
        world.fail("effort", f"only {world.steps} events")


def over(world: World) -> bool:
    """Whether there is a verdict, and every agent has ended."""
    return world.verdict_there() and world.finished() and bool(world.nodes)


def chaos(world: World, rng: random.Random) -> None:
    """One to nine faults strike, and a split network besides in some seeds."""
    planned = []
    for _ in range(rng.randint(1, 9)):
        fault = rng.choices(FAULTS, WEIGHTS)[0]
        planned.append((fault, rng.uniform(0.5, CHAOS_S)))
    if world.seed % SPLIT_SEEDS == SPLIT_SEEDS - 2:
        planned.append((faults.split, random.Random(world.seed).uniform(5.0, CHAOS_S)))
    apart = random.Random(f"{world.seed} faults of heartbeats")
    count = apart.randint(0, 3) if world.heartbeats_on else 0
    planned += [(apart.choice(OF_HEARTBEATS), apart.uniform(5.0, CHAOS_S)) for _ in range(count)]
    if world.heartbeats_on and world.seed % DEAF_SEEDS == DEAF_SEEDS - 7:
        planned.append((faults.deaf, apart.uniform(5.0, CHAOS_S)))
    for fault, at in planned:

        def strike(fault: Callable[[World, random.Random], None] = fault) -> None:
            if not over(world):
                world.counts[f"fault {fault.__name__}"] += 1
                world.log(f"fault: {fault.__name__}")
                fault(world, apart if fault in (*OF_HEARTBEATS, faults.deaf) else rng)

        world.after(at, strike)


def _calm(world: World, rng: random.Random) -> None:
    """One fault in an otherwise healthy run, with tight expectations."""
    calm = Calm()
    world.watch_faults = False
    world.observe(calm)

    def strike() -> None:
        node = pick(world, rng)
        situation = rng.choice([None, None, None, None, *SITUATIONS])
        if world.seed % (4 * SPLIT_SEEDS) == 3 * SPLIT_SEEDS + 4:
            situation = split
        steady = calm.steady(world)
        if situation is not None and steady is not None and node is not None:
            world.counts[f"calm {situation.__name__}"] += 1
            world.log(f"calm: {situation.__name__} of {node.name}")
            situation(world, calm, node, steady)
            return
        kind = rng.choice(["loss", "outage", "return", "astray", "bad host", "taken away", "leases"])
        if kind == "loss" and node is not None:
            calm.expect_notice(world, node)
            world.kill_node(node)
        elif kind == "bad host" and node is not None:
            world.job.work_s += 70.0  # So that there is still work when it comes back.
            bad_for(world, node, rng.uniform(10.0, 40.0))
        elif kind == "astray" and node is not None and world.links:
            if node.workers is not None:  # A spare may be taken before anybody knows: it asks nobody for a vouch.
                calm.expect_nothing(world)
            seconds = rng.uniform(1.0, world.spec.etcd_outage_timeout_s * 0.8)
            world.astray_for(node, seconds, then=lambda: calm.store_is_back(world))
        elif kind == "taken away" and node is not None and world.links:
            calm.expect_nothing(world)
            take_away(world, rng, node.name)
            world.after(2 * world.spec.lease_ttl_s, lambda: calm.store_is_back(world))
        elif kind == "leases":
            calm.expect_nothing(world)
            storefaults.leases_ended_early(world, rng)
            world.after(1.0, lambda: calm.store_is_back(world))
        elif kind == "return" and node is not None:
            cut_for(world, node, rng.uniform(3.0, 12.0), then=lambda: calm.expect_return(world, node))
        else:
            calm.expect_nothing(world)
            world.away_for(
                rng.uniform(1.0, world.spec.etcd_outage_timeout_s * 0.8),
                then=lambda: calm.store_is_back(world),
                still=rng.choice([None, lambda: rng.uniform(0.0, storefaults.RECONNECT_S)]),
            )

    world.after(rng.uniform(12.0, 25.0), strike)


def heal(world: World) -> None:
    """All faults are over, and there are enough nodes."""
    world.log("everything is healed")
    world.late_answers = 0.0
    world.store_up = True
    world.job.bad_until.clear()
    world.dismiss(KillAtStep)
    world.dismiss(EmptyAtStep)
    world.dismiss(Overtaken)
    world.dismiss(DoneAndGone)
    for node in alive(world):
        node.cut = node.deaf = node.astray = node.unlinkable = node.apart = False
        node.apart_from.clear()
        node.deaf_to.clear()
        node.silent_at = 1e9
        if node.frozen or node.agent_frozen:
            world.thaw(node)
        world.set_rate(node, 1.0)
        world.relist(node)
    if not world.verdict_there():
        if Promises().view(world).spec is not None:
            operator_writes(world, KEYS.spec, encode(world.spec))
        for number in range(max(world.spec.np.first, world.spec.np.low) + 1):
            start(world, f"healed{number}")
