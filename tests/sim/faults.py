"""What goes wrong, by name, and the schedule of one run."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from elastic.agentevents import ProvenGone
from elastic.keys import encode
from elastic.model import Generation, Np, Status, Verdict
from elastic.proposals import Transaction
from elastic.store.base import Delete, Put, Range
from tests.sim.checks import OPERATOR, Calm, Promises
from tests.sim.nodes import KEYS, KILL_S, Node, Observer
from tests.sim.world import World

CHAOS_S = 70.0
HEALED_S = 900.0
"""After all faults are over the job ends within this time, the longest wait for an old world included."""
EVENTS_MIN = 200


class KillAtStep(Observer):
    """Kills the proposer at one step of its next proposal: before it arrives, or once it is carried out."""

    def __init__(self, world: World, kind: str, power: bool) -> None:
        self.kind = kind
        self.power = power
        self.armed = True
        world.observers.append(self)

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """The proposal is in the store, its answer is on the way."""
        if self.armed and transaction.kind == self.kind and node.alive:
            self.armed = False
            world.counts[f"fault proposer lost after {self.kind}"] += 1
            (world.kill_node if self.power else world.kill_agent)(node)

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Nothing to do."""


def _alive(world: World) -> list[Node]:
    return [node for node in world.nodes.values() if node.alive and node.exit_code is None]


def _pick(world: World, rng: random.Random) -> Node | None:
    nodes = _alive(world)
    return rng.choice(nodes) if nodes else None


def crash_agent(world: World, rng: random.Random) -> None:
    """SIGKILL to an agent."""
    node = _pick(world, rng)
    if node is not None:
        world.kill_agent(node)


def power_off(world: World, rng: random.Random) -> None:
    """A whole node is gone."""
    node = _pick(world, rng)
    if node is not None:
        world.kill_node(node)


def restart_on_same_host(world: World, rng: random.Random) -> None:
    """An agent is killed and started again on its host at once; the machine shows that the old one is dead."""
    node = _pick(world, rng)
    if node is None:
        return
    world.kill_agent(node)

    def again() -> None:
        fresh = world.start_node(node.host)
        world.after(KILL_S + 0.1, lambda: world.prove_dead_to(fresh, node))

    world.after(rng.uniform(0.05, 1.0), again)


def freeze_agent(world: World, rng: random.Random) -> None:
    """SIGSTOP to the agent alone; nursery and workers go on."""
    node = _pick(world, rng)
    if node is not None and node.hears:
        node.agent_frozen = True
        world.log(f"{node.name}: agent frozen")
        world.after(rng.choice([0.5, 3.0, rng.uniform(5, 25)]), lambda: _thaw(world, node))


def freeze_node(world: World, rng: random.Random) -> None:
    """The machine stands still."""
    node = _pick(world, rng)
    if node is not None and node.hears:
        node.frozen = True
        world.log(f"{node.name}: node frozen")
        world.after(rng.choice([0.5, 3.0, rng.uniform(5, 25)]), lambda: _thaw(world, node))


def _thaw(world: World, node: Node) -> None:
    if node.alive and (node.frozen or node.agent_frozen):
        world.log(f"{node.name}: goes on")
        world.thaw(node)


def clock_runs_wrong(world: World, rng: random.Random) -> None:
    """A node's clock runs 2 % too fast or too slow."""
    node = _pick(world, rng)
    if node is not None:
        world.set_rate(node, rng.choice([0.98, 1.02]))


def cut_off(world: World, rng: random.Random) -> None:
    """A node reaches neither the store nor any other node."""
    node = _pick(world, rng)
    if node is not None and not node.cut:
        _cut_for(world, node, rng.choice([1.0, rng.uniform(3, 30)]))


def _cut_for(world: World, node: Node, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    node.cut, node.silent_at = True, world.now
    world.log(f"{node.name}: cut off")

    def back() -> None:
        node.cut, node.silent_at = False, 1e9
        world.log(f"{node.name}: reaches the others again")
        world.relist(node)
        then()

    world.after(seconds, back)


def astray(world: World, rng: random.Random) -> None:
    """A node does not reach the store, and is still heard by the other nodes."""
    node = _pick(world, rng)
    if node is not None and not node.astray:
        _astray_for(world, node, rng.choice([1.0, rng.uniform(3, 40)]))


def _astray_for(world: World, node: Node, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    node.astray = True
    world.log(f"{node.name}: does not reach the store")

    def back() -> None:
        node.astray = False
        world.log(f"{node.name}: reaches the store again")
        world.relist(node)
        then()

    world.after(seconds, back)


def unlinkable(world: World, rng: random.Random) -> None:
    """A node comes whose agent nobody can connect to (a firewall)."""
    world.start_node("walled").unlinkable = True


def deaf_watch(world: World, rng: random.Random) -> None:
    """A watch tells nothing more, without an error, until the next listing."""
    node = _pick(world, rng)
    if node is not None:
        node.deaf = True


def late_writes(world: World, rng: random.Random) -> None:
    """For some seconds, answers are lost and writes arrive long after their sender gave up."""
    world.late_answers = rng.choice([0.2, 0.5])

    def over() -> None:
        world.late_answers = 0.0

    world.after(rng.uniform(2, 10), over)


def lease_lost_while_alive(world: World, rng: random.Random) -> None:
    """Somebody revokes the lease of a healthy node."""
    node = _pick(world, rng)
    if node is not None and node.lease is not None:
        world.log(f"{node.name}: its lease is revoked")
        world.store.revoke(node.lease)
        world.deliver()


def leader_change(world: World, rng: random.Random) -> None:
    """The store does not answer for a moment; then every lease counts anew."""
    _outage(world, rng.uniform(0.3, 2.5))


def outage_short(world: World, rng: random.Random) -> None:
    """The store is away for less than the limit."""
    _outage(world, rng.uniform(3.0, world.spec.store_outage_limit_s * 0.8))


def outage_long(world: World, rng: random.Random) -> None:
    """The store is away for longer than the limit."""
    _outage(world, world.spec.store_outage_limit_s + rng.uniform(8.0, 20.0))


def _outage(world: World, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    if not world.store_up:
        return
    world.store_up = False
    world.log(f"the store is away for {seconds:.1f} s")

    def back() -> None:
        world.store_up = True
        world.store.prolong(world.now)
        world.log("the store is back")
        for node in _alive(world):
            world.relist(node)
        then()

    world.after(seconds, back)


def store_empty(world: World, rng: random.Random) -> None:
    """The store comes back without anything in it."""
    if world.store_up and world.counts["fault store_empty"] <= 1:
        world.store_up = False

        def back() -> None:
            world.replace_store()
            world.store_up = True

        world.after(rng.uniform(0.2, 3.0), back)


def join_storm(world: World, rng: random.Random) -> None:
    """Several nodes come in the same moment."""
    for number in range(rng.randint(2, 4)):
        if len(_alive(world)) < world.size + 3:
            world.after(rng.uniform(0, 0.2), lambda number=number: _start(world, f"storm{number}"))  # type: ignore[misc]


def _start(world: World, host: str) -> None:
    world.start_node(host)


def leave_and_join(world: World, rng: random.Random) -> None:
    """One node drains, another comes."""
    node = _pick(world, rng)
    if node is not None:
        world.drain(node)
        _start(world, "new")


def drain(world: World, rng: random.Random) -> None:
    """SIGTERM to one agent, or to all at once."""
    nodes = _alive(world)
    for node in nodes if rng.random() < 0.1 else nodes[:1] if rng.random() < 0.3 else [rng.choice(nodes or [None])]:
        if node is not None:
            world.drain(node)


def false_proof(world: World, rng: random.Random) -> None:
    """Links say of a healthy node that its process is gone."""
    node = _pick(world, rng)
    created = node.core.facts.registered if node is not None else None
    if node is None or created is None:
        return
    world.log(f"{node.name}: falsely proven dead")
    for other in _alive(world):
        if other is not node:
            world.feed(other, ProvenGone(node.name, created, node.host))


def _worker_ends(world: World, rng: random.Random, code: int) -> None:
    nodes = [node for node in _alive(world) if node.workers is not None]
    if nodes and world.steps > EVENTS_MIN:  # A run that has used up its budget is over.
        node = rng.choice(nodes)
        assert node.workers is not None
        world.end_worker(node, node.workers, code)


def worker_fails(world: World, rng: random.Random) -> None:
    """A script fails by itself."""
    _worker_ends(world, rng, 1)


def crash_loop(world: World, rng: random.Random) -> None:
    """A script fails again and again, a moment after each start."""
    for number in range(12):
        world.after(number * rng.uniform(0.5, 3.0), lambda: _worker_ends(world, rng, 1))


def worker_asks_restart(world: World, rng: random.Random) -> None:
    """A script asks for a restart."""
    _worker_ends(world, rng, 101)


def worker_fatal(world: World, rng: random.Random) -> None:
    """A script ends with a code that must not be tried again."""
    if world.steps > EVENTS_MIN:
        _worker_ends(world, rng, 9)


def drain_as_a_worker_fails(world: World, rng: random.Random) -> None:
    """SIGTERM to one agent in the moment in which a worker fails on another."""
    nodes = [node for node in _alive(world) if node.workers is not None]
    if len(nodes) > 1 and world.steps > EVENTS_MIN:
        failing, leaving = rng.sample(nodes, 2)
        assert failing.workers is not None
        world.end_worker(failing, failing.workers, 1)
        world.after(rng.uniform(0.001, 0.008), lambda: world.drain(leaving))


def proposal_outlives_its_proposer(world: World, rng: random.Random) -> None:
    """The proposer's writes linger on their way, and its lease is revoked before they arrive."""
    first = next((node for node in _alive(world) if node.scope[0]), None)
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


def proposer_lost(world: World, rng: random.Random) -> None:
    """The proposer is killed at a step of its next proposal."""
    KillAtStep(world, rng.choice(["form", "go", "verdict", "record", "register"]), rng.random() < 0.5)
    if rng.random() < 0.7:
        rng.choice([worker_fails, leave_and_join, join_storm])(world, rng)


def wrong_slots(world: World, rng: random.Random) -> None:
    """A node with another number of cards comes; it is refused."""
    world.start_node("wide", slots=2)


def impatient_node(world: World, rng: random.Random) -> None:
    """A node comes that gives up when no world comes together."""
    world.start_node("impatient", elastic_timeout_s=rng.uniform(2.0, 6.0))


def late_drain(world: World, rng: random.Random) -> None:
    """A node is told to leave in the moment in which it comes."""
    node = world.start_node("brief")
    world.after(rng.uniform(0.0, 0.01), lambda: world.drain(node))


def scale(world: World, rng: random.Random) -> None:
    """An operator wants another number of nodes."""
    view = Promises().view(world)
    if view.spec is not None and view.verdict is None:
        high = rng.randint(view.spec.value.np.low, world.size + 1)
        np = Np(low=view.spec.value.np.low, high=high, first=min(view.spec.value.np.first, high))
        world.log(f"scaled to {np}")
        _operator_writes(world, KEYS.spec, encode(msgspec.structs.replace(view.spec.value, np=np)))


def operator_stops(world: World, rng: random.Random) -> None:
    """An operator ends the job."""
    view = Promises().view(world)
    if view.spec is not None and view.verdict is None and world.steps > EVENTS_MIN:
        verdict = Verdict(status=Status.FAILED, reason="stopped", run=1, g=0, tag=OPERATOR, at=0.0)
        _operator_writes(world, KEYS.verdict, encode(verdict))


def damaged_document(world: World, rng: random.Random) -> None:
    """Something that nobody can read stands where a document was, until a person puts it back."""
    key = rng.choice([KEYS.spec, KEYS.generation, KEYS.go, KEYS.incarnation, KEYS.member("junk")])
    found = world.store.list(Range.key(key)).entries
    if not world.store_up or (not found and key != KEYS.member("junk")) or world.verdict_there():
        return
    _operator_writes(world, key, b"\xff{")
    store = world.store

    def mend() -> None:
        now = world.store.list(Range.key(key)).entries
        if world.store is store and now and now[0].value == b"\xff{":
            if found:
                _operator_writes(world, key, found[0].value)
            else:
                world.store.txn((), (Delete(Range.key(key)),))
                world.deliver()

    world.after(rng.uniform(1.0, 8.0), mend)


def spec_deleted(world: World, rng: random.Random) -> None:
    """Somebody deletes the spec; the next node that comes writes it anew."""
    world.store.txn((), (Delete(Range.key(KEYS.spec)),))
    world.deliver()
    world.after(rng.uniform(0.5, 5.0), lambda: _start(world, "respec"))


def member_taken_away(world: World, rng: random.Random) -> None:
    """Somebody deletes or damages the key of a member whose lease lives; nobody puts it back but the member itself."""
    node = _pick(world, rng)
    if node is not None and world.store_up:
        _take_away(world, rng, node.name)


def _take_away(world: World, rng: random.Random, name: str) -> None:
    key = KEYS.member(name)
    found = world.store.list(Range.key(key)).entries
    if found:
        junk = Put(key, b"\xff{", rng.choice([0, found[0].lease]))
        world.store.txn((), (Delete(Range.key(key)),) if rng.random() < 0.5 else (junk,))
        world.deliver()


def _operator_writes(world: World, key: str, value: bytes) -> None:
    world.store.txn((), (Put(key, value),))
    world.deliver()


FAULTS: tuple[Callable[[World, random.Random], None], ...] = (
    crash_agent, power_off, restart_on_same_host, freeze_agent, freeze_node, clock_runs_wrong, cut_off, astray,
    unlinkable, deaf_watch, late_writes, lease_lost_while_alive, leader_change, outage_short, outage_long,
    store_empty, join_storm, leave_and_join, drain, false_proof, worker_fails, worker_asks_restart, worker_fatal,
    crash_loop, proposer_lost, drain_as_a_worker_fails, proposal_outlives_its_proposer, wrong_slots,
    impatient_node, late_drain, scale, operator_stops, damaged_document, spec_deleted, member_taken_away,
)  # fmt: skip
RARE = {"outage_long": 0.3, "store_empty": 0.4, "crash_loop": 0.4, "operator_stops": 0.2, "worker_fatal": 0.3}
WEIGHTS = tuple(RARE.get(fault.__name__, 1.0) for fault in FAULTS)


def run_seed(seed: int, *, defect: str = "") -> World:
    """Run one whole life of a job; raises `Violation`. The same seed gives the same run."""
    world = make(seed, defect=defect)
    live(world)
    return world


def make(seed: int, *, defect: str = "") -> World:
    """A world before anything has happened, watched by every promise."""
    world = World(seed, defect=defect)
    world.observers.append(Promises())
    return world


def live(world: World) -> None:
    """Let everything happen: nodes start, faults strike, all is healed, the job ends."""
    rng = world.random
    for number in range(world.size):
        delay = 0.0 if rng.random() < 0.5 else rng.uniform(0, 6.0)
        world.after(delay, lambda number=number: _start(world, f"h{number}"))  # type: ignore[misc]
    if world.seed % 4 == 0:
        _calm(world, rng)
    else:
        _chaos(world, rng)
    world.run_to(CHAOS_S + 40.0, stop=lambda: _over(world))
    _heal(world)
    world.run_to(world.now + HEALED_S, stop=lambda: _over(world))
    if not _over(world):
        waiting = {node.name: f"{node.core.phase} {node.core.facts.decision}" for node in _alive(world)}
        world.fail("liveness", f"the faults are healed and the job does not end: {waiting}")
    if world.steps < EVENTS_MIN:
        world.fail("effort", f"only {world.steps} events")


def _over(world: World) -> bool:
    return world.verdict_there() and world.finished() and bool(world.nodes)


def _chaos(world: World, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 9)):
        fault = rng.choices(FAULTS, WEIGHTS)[0]
        at = rng.uniform(0.5, CHAOS_S)

        def strike(fault: Callable[[World, random.Random], None] = fault) -> None:
            if not _over(world):
                world.counts[f"fault {fault.__name__}"] += 1
                world.log(f"fault: {fault.__name__}")
                fault(world, rng)

        world.after(at, strike)


def _calm(world: World, rng: random.Random) -> None:
    """One fault in an otherwise healthy run, with tight expectations."""
    calm = Calm()
    world.watch_faults = False
    world.observers.append(calm)

    def strike() -> None:
        node = _pick(world, rng)
        kind = rng.choice(["loss", "outage", "return", "astray", "taken away"])
        if kind == "loss" and node is not None:
            calm.expect_notice(world, node)
            world.kill_node(node)
        elif kind == "astray" and node is not None and world.links:
            if node.workers is not None:  # A spare may be taken before anybody knows: it asks nobody for a vouch.
                calm.expect_nothing(world)
            seconds = rng.uniform(1.0, world.spec.store_outage_limit_s * 0.8)
            _astray_for(world, node, seconds, then=lambda: calm.store_is_back(world))
        elif kind == "taken away" and node is not None and world.links:
            calm.expect_nothing(world)
            _take_away(world, rng, node.name)
            world.after(2 * world.spec.lease_ttl_s, lambda: calm.store_is_back(world))
        elif kind == "return" and node is not None:
            _cut_for(world, node, rng.uniform(3.0, 12.0), then=lambda: calm.expect_return(world, node))
        else:
            calm.expect_nothing(world)
            _outage(
                world,
                rng.uniform(1.0, world.spec.store_outage_limit_s * 0.8),
                then=lambda: calm.store_is_back(world),
            )

    world.after(rng.uniform(12.0, 25.0), strike)


def _heal(world: World) -> None:
    """All faults are over, and there are enough nodes."""
    world.log("everything is healed")
    world.late_answers = 0.0
    world.store_up = True
    world.observers = [observer for observer in world.observers if not isinstance(observer, KillAtStep)]
    for node in _alive(world):
        node.cut = node.deaf = node.astray = node.unlinkable = False
        node.silent_at = 1e9
        if node.frozen or node.agent_frozen:
            world.thaw(node)
        world.set_rate(node, 1.0)
        world.relist(node)
    if not world.verdict_there():
        if Promises().view(world).spec is not None:
            _operator_writes(world, KEYS.spec, encode(world.spec))
        for number in range(max(world.spec.np.first, world.spec.np.low) + 1):
            _start(world, f"healed{number}")
