"""One thing happens to a job that is otherwise healthy, and what must follow *soon* is looked for.

Promises 3 and 6: a loss is acted on at once, and costs one start. 5: a planned change stops nobody twice. 7: an outage
of the store stops nothing. 10: a failure costs one restart, and is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic.core.agent.state import Phase
from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.membership.memory import LINK_PATIENCE_S
from elastic.core.membership.planned_changes import SCALE_UP_INTERVAL_S
from elastic.core.membership.situation import BATCH_S
from elastic.core.model import ChangeReason, Generation, GenerationMember, Go, OutcomeKind
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from tests.sim.accidents import apart_for, cut_for, thaw
from tests.sim.checks import Promises
from tests.sim.ends import GRACE_MAX_S
from tests.sim.nodes import KEYS, Node, Observer, WorkerSet
from tests.sim.nurseries import REACH_S, SAVE_LIMIT_S
from tests.sim.world import World

NOTICE_S = 2.5
"""A loss that the store shows is acted on within this time, when nothing else is wrong."""
RETURN_S = 3.0
"""A node that reaches the store again is registered within this time."""
BACK_S = 20.0
"""A host that was kept out is in a generation again within this time and the limit between two growths."""
CLOSED_S = 0.06
"""The kernel tells of a link that closed within this time, and what was decided before then is in the store."""
SILENT_TIMEOUTS = 1.8
"""So many silence timeouts after its last sign a silent node is out of the generation: trials and jitter come to it."""
SILENT_MORE_S = 0.8
"""And this long for a heartbeat, a refresh of the lease and two transactions."""
STOP_S = 3.0
"""On a loss, workers are gone after this time, and their agents have said so."""


@dataclass
class Expected:
    """Something that must come within a time. `formed` and `went` complain about what comes meanwhile."""

    guarantee: str
    text: str
    until: float
    done: Callable[[StoreView], bool]
    formed: Callable[[Generation], str] = lambda _: ""
    went: Callable[[Generation, Go], str] = lambda *_: ""
    then: Callable[[], None] = lambda: None


class Calm(Observer):
    """What is expected after the one thing that happened."""

    def __init__(self) -> None:
        self.lost: tuple[Node, float] | None = None
        self.outage: dict[str, WorkerSet] | None = None
        self.outage_until = float("inf")
        self.out: tuple[str, float, float] | None = None
        self.back: tuple[Node, float] | None = None
        self.expected: list[Expected] = []
        self._promises = Promises()
        self._looked_at = (0, 0)

    def view(self, world: World) -> StoreView:
        """What stands in the store."""
        return self._promises.view(world)

    def expect(self, world: World, expected: Expected) -> None:
        """From now on."""
        self.expected.append(expected)
        world.after(expected.until - world.now + 0.001, lambda: None)

    def steady(self, world: World) -> Generation | None:
        """The newest generation, if all its workers run and will for a while, and every node is well."""
        view = self.view(world)
        generation = view.generation.value if view.generation is not None else None
        running = {node.name for node in world.nodes.values() if node.workers is not None and not node.workers.stopping}
        alive = {node.name for node in world.nodes.values() if node.alive and node.exit_code is None}
        same = generation is not None and {place.node for place in generation.members} == running and running
        busy = world.job.work_s - world.job.done_s > 10.0 and view.verdict is None
        return generation if same and busy and alive == set(view.members) else None

    def expect_notice(self, world: World, node: Node) -> None:
        """From now on: when the store no longer shows this member, a generation without it follows at once."""
        generation = node.core.facts.generation
        if node.workers is not None and generation is not None and len(generation.members) > world.spec.np.low:
            self.lost = (node, -1.0)

    def expect_nothing(self, world: World) -> None:
        """From now on, until the store is back: every worker that runs goes on, if nobody waits to join."""
        running = {node.name: node.workers for node in world.nodes.values() if node.workers is not None}
        newest = {place.node for place in self._newest(world)}
        same = newest == set(running) == set(self.view(world).members)
        steady = all(not workers.stopping for workers in running.values()) and same
        if running and steady and all(node.links and node.hears for node in world.nodes.values() if node.alive):
            self.outage = running

    def _newest(self, world: World) -> tuple[GenerationMember, ...]:
        view = self.view(world)
        return view.generation.value.members if view.generation is not None else ()

    def expect_return(self, world: World, node: Node) -> None:
        """The node reaches the store again: it is registered soon."""
        if node.alive and node.exit_code is None:
            self.back = (node, world.now + RETURN_S)

    def store_is_back(self, world: World) -> None:
        """Look a while longer: everybody registers again, and nothing restarts."""
        self.outage_until = world.now + RETURN_S

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """Complain about what should not have been written, if anything."""
        if transaction.kind == "form":
            self._note_kept_out(world)
        if not self.expected or transaction.kind not in ("form", "go"):
            return
        view = self.view(world)
        assert view.generation is not None
        for one in self.expected:
            said = one.formed(view.generation.value) if transaction.kind == "form" else ""
            if transaction.kind == "go" and view.go is not None:
                said = one.went(view.generation.value, view.go.value)
            if said:
                world.fail(one.guarantee, said)

    def _note_kept_out(self, world: World) -> None:
        """A host is kept out: from now on it is expected back, when its time is over."""
        view = self.view(world)
        if view.generation is None or view.generation.value.why is not ChangeReason.QUARANTINED:
            return
        one = max(view.generation.value.budget.hosts, key=lambda one: one.left_s)
        grow_s = SCALE_UP_INTERVAL_S if world.spec.scale_up_interval_s is None else world.spec.scale_up_interval_s
        self.out = (one.host, world.now + one.left_s * 1.05 + grow_s + BACK_S, world.job.done_s)

    def _look_for_host(self, world: World, host: str, done_s: float) -> None:
        """It is back in the newest generation, if that has room; and the job went on without it."""
        view = self.view(world)
        generation = view.generation.value if view.generation is not None else None
        ready = any(stored.value.host == host for stored in view.members.values())
        if generation is None or view.spec is None or view.verdict is not None or not ready:
            return
        world.counts["the return of a kept-out host was looked at"] += 1
        inside = host in {place.host for place in generation.members}
        if not inside and len(generation.members) < view.spec.value.np.high:
            world.fail("a bad host", f"{host} was kept out and is not back")
        if world.job.done_s < done_s + BACK_S:
            world.fail("a bad host", f"{host} was kept out and the others did not go on")

    def after_event(self, world: World) -> None:
        """Look at what was expected."""
        if self.out is not None and world.now > self.out[1]:
            host, _, done_s = self.out
            self.out = None
            self._look_for_host(world, host, done_s)
        if self.outage is not None:
            for name, workers in self.outage.items():
                node = world.nodes[name]
                if workers.stopping and node.workers is workers:
                    world.fail("7", f"the store is away, or just back, and {name} stops its workers")
            if world.now > self.outage_until:
                world.counts["guarantee 7 was looked at"] += 1
                self.outage = None
        if self.back is not None:
            self._look_for_return(world, *self.back)
        if self.lost is not None:
            self._look_for_notice(world, *self.lost)
        if self.expected:
            self._look_for_rest(world)

    def _look_for_return(self, world: World, node: Node, limit: float) -> None:
        if node.core.facts.registration.registered or node.exit_code is not None or world.verdict_there():
            world.counts["a return was looked at"] += 1
            self.back = None
        elif world.now > limit:
            world.fail("3", f"{node.name} reaches the store for {RETURN_S} s and has not registered")

    def _look_for_notice(self, world: World, node: Node, since: float) -> None:
        at = (world.store_number, world.store.revision)
        if at == self._looked_at and (since < 0 or world.now <= since + NOTICE_S):
            return
        self._looked_at = at
        view = self.view(world)
        if node.name in view.members:
            return
        if since < 0:
            self.lost = (node, world.now)
        elif view.verdict is not None or view.generation is None or view.generation.value.index(node.name) is None:
            world.counts["guarantees 3 and 6 were looked at"] += 1
            self.lost = None
            if view.verdict is None and view.generation is not None:
                self._expect_go(world, view.generation.value)
        elif self._was_done(view, node):
            self.lost = None
        elif world.now > since + NOTICE_S:
            world.fail("6", f"{node.name} is gone for {NOTICE_S} s and nobody acts")

    @staticmethod
    def _was_done(view: StoreView, node: Node) -> bool:
        end = view.outcomes.get((view.generation.value.g, node.name)) if view.generation is not None else None
        return end is not None and end.value.ended is OutcomeKind.OK

    def _expect_go(self, world: World, generation: Generation) -> None:
        """The world without the one that is lost starts as soon as the others have stopped."""
        if len(generation.members) >= world.spec.np.low and not self.expected:
            text = f"a member is lost, and {generation.g} does not start within {STOP_S} s"
            self.expect(world, Expected("6", text, world.now + STOP_S, lambda view: went(view) >= generation.g))

    def _look_for_rest(self, world: World) -> None:
        at = (world.store_number, world.store.revision)
        if at == self._looked_at and all(world.now <= one.until for one in self.expected):
            return
        self._looked_at = at
        view = self.view(world)
        for one in tuple(self.expected):
            if view.verdict is not None or one.done(view):
                self.expected.remove(one)
                world.counts["something was expected and came"] += 1
                if view.verdict is None:
                    one.then()
            elif world.now > one.until:
                world.fail(one.guarantee, one.text)


def went(view: StoreView) -> int:
    """The newest generation that has its go."""
    return view.go.value.g if view.go is not None else 0


def inside(view: StoreView) -> set[str]:
    """Who is in the newest generation."""
    return {place.node for place in view.generation.value.members} if view.generation is not None else set()


def crash(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """An agent dies and its links show it: the next world is without it at once, although its peers fail first."""
    if node.workers is None or not world.links or len(old.members) <= world.spec.np.low:
        return
    world.kill_agent(node)
    for place in old.members:  # Their sockets close in the same moment.
        peer = world.nodes[place.node]
        if peer.alive and peer.workers is not None:
            if world.seed % 8 == 4 and place == old.members[-1]:
                world.end_worker(peer, peer.workers, 1)  # It fails by itself besides; that is free, too.
            else:
                world.after(0.002, world.echo(peer, peer.workers))

    unnoticed = world.now + CLOSED_S

    def formed(generation: Generation) -> str:
        if generation.why is ChangeReason.FAILURE and world.now < unnoticed:
            return ""  # A worker that failed by itself asks no question.
        if generation.index(node.name) is not None:
            return f"{generation.g} still has {node.name}, which died"
        later = generation.g > old.g + 1  # At the gate: a spare that was not linked yet joins, too.
        return (
            ""
            if generation.why is ChangeReason.NODE_LOST or later
            else f"{generation.why} after the loss of {node.name}"
        )

    calm.expect(
        world,
        Expected(
            "6",
            f"{node.name} died, and its links show it, and the others do not start within {STOP_S} s",
            world.now + STOP_S + 1.0,
            lambda view: went(view) > old.g,
            formed,
        ),
    )


def failure(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A script fails by itself: one restart is charged, and the failure is named."""
    view = calm.view(world)
    if node.workers is None or view.go is None:
        return
    budget = view.go.value.budget
    echo = world.seed % 8 == 0  # Of what, nobody finds out.
    world.job.failures += echo
    world.end_worker(node, node.workers, 1, secondary=echo)

    def charged(_: Generation, go: Go) -> str:
        if go.budget.charged != budget.charged + 1:
            return f"{go.budget} after {budget} and one failure"
        if go.cause is None or (go.cause.node != node.name and not echo):  # The first echo is as good as the second.
            return f"{node.name} failed, and the cause is {go.cause}"
        return ""

    def formed(generation: Generation) -> str:
        return "" if generation.why is ChangeReason.FAILURE else f"{generation.why} after a failure of {node.name}"

    text = f"{node.name} failed, and nothing starts within {STOP_S} s"
    until = world.now + STOP_S
    calm.expect(world, Expected("10", text, until, lambda view: went(view) > old.g, formed, charged))


def drains(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """One or two nodes drain: one planned generation without them."""
    leaving = [node.name]
    if world.seed % 8 == 4:
        _drain_at_the_end(world, calm, node, old)
        return
    world.drain(node)
    others = [place.node for place in old.members if place.node != node.name]
    if len(others) > world.spec.np.low and world.random.random() < 0.6:
        second = world.nodes[world.random.choice(others)]
        leaving.append(second.name)
        world.after(world.random.uniform(0.0, 0.5 * BATCH_S), lambda: world.drain(second))
    if old.index(node.name) is None:
        return

    def formed(generation: Generation) -> str:
        still = [name for name in leaving if generation.index(name) is not None]
        if generation.why is not ChangeReason.DRAIN:
            return f"{generation.why} after a drain of {leaving}"
        return f"{generation.g} still has {still}, who drain" if still else ""

    text = f"{leaving} drain, and nothing is done within {NOTICE_S} s"
    until = world.now + NOTICE_S
    calm.expect(world, Expected("5", text, until, lambda view: not inside(view) & set(leaving), formed))


def _drain_at_the_end(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A node drains when others of its world have ended well: nothing is changed for it any more."""
    if old.index(node.name) is None or len(old.members) < 2:
        return
    world.job.done_s = world.job.work_s
    for place in old.members:
        one = world.nodes[place.node]
        if one.workers is not None:
            last = one is node
            world.after(1.0 if last else 0.01, lambda one=one, workers=one.workers: world.end_worker(one, workers, 0))  # type: ignore[misc]
    world.after(0.1, lambda: world.drain(node))

    def formed(generation: Generation) -> str:
        return f"{generation.why} after the first of {old.g} had ended well"

    text = "every worker has ended well, and the job has not"
    calm.expect(world, Expected("14", text, world.now + STOP_S, lambda view: view.verdict is not None, formed))


def shrink(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """An operator wants fewer nodes: the last of the generation are left out."""
    if world.seed % 8 == 4:
        _incarnation_deleted(world, calm, node, old)
        return
    high = max(world.spec.np.low, len(old.members) - 1)
    if high == len(old.members):
        return
    names = [place.node for place in old.members][:high]
    world.scale_to(high)

    def formed(generation: Generation) -> str:
        here = [place.node for place in generation.members]
        return (
            ""
            if here == names and generation.why is ChangeReason.SCALE_DOWN
            else f"{generation.why} to {here}, not {names}"
        )

    text = f"{high} nodes are wanted, and nothing is done within {NOTICE_S} s"
    done: Callable[[StoreView], bool] = lambda view: inside(view) == set(names)  # noqa: E731
    calm.expect(world, Expected("5", text, world.now + NOTICE_S, done, formed))


def _incarnation_deleted(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """Somebody deletes the key that says which store this is, a script fails, and the key is put back."""
    if node.workers is None:
        return
    stood = world.store.list(KeyRange.key(KEYS.incarnation)).entries[0]
    world.store.txn((), (Delete(KeyRange.key(KEYS.incarnation)),))
    world.deliver()
    world.end_worker(node, node.workers, 1)

    def back() -> None:
        world.store.txn((), (Put(KEYS.incarnation, stood.value),))
        world.deliver()

    world.after(STOP_S, back)
    text = "the key is back, and nothing starts"
    calm.expect(world, Expected("6", text, world.now + 3 * STOP_S, lambda view: went(view) > old.g))


def growth(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """Two nodes come for whom there is room, then one more: two growths, the second in its time."""
    if world.spec.ips or set(calm.view(world).members) != {place.node for place in old.members}:
        return
    if any(one.core.facts.memory.scaled_up_at is not None for one in world.nodes.values()):
        return
    world.scale_to(len(old.members) + 2)
    fresh = [world.start_node("grown0", warm=True)]

    def second() -> None:
        fresh.append(world.start_node("grown1", warm=True))

    world.after(world.random.uniform(0.0, 0.4) * world.spec.join_window_s, second)
    until = world.now + 2 * world.spec.join_window_s + LINK_PATIENCE_S + 2.0

    def formed(generation: Generation) -> str:
        missing = [one.name for one in fresh if generation.index(one.name) is None]
        return f"{generation.why} without {missing}" if missing or generation.why is not ChangeReason.SCALE_UP else ""

    def once_more() -> None:
        world.after(2.0, lambda: grow_again(world, calm))

    text = "two nodes came for whom there is room, and the job does not grow"
    done: Callable[[StoreView], bool] = lambda view: len(fresh) > 1 and inside(view) >= {one.name for one in fresh}  # noqa: E731
    calm.expect(world, Expected("3", text, until, done, formed, then=once_more))


def grow_again(world: World, calm: Calm) -> None:
    """A node comes soon after the job has grown: it is taken in when the pause is over, or at once if there is none."""
    old = calm.steady(world)
    if old is None or old.why is not ChangeReason.SCALE_UP:
        return
    first = world.nodes[old.members[0].node]
    given = world.spec.scale_up_interval_s

    def apart_s() -> float:
        """How far apart two growths are, as long as the first node's workers are what they are now."""
        listens = first.workers is not None and first.core.facts.memory.listening == old.g
        return given if given is not None else 0.0 if listens else SCALE_UP_INTERVAL_S

    every_s = apart_s()
    grown_at = world.now
    world.scale_to(len(old.members) + 1)
    fresh = world.start_node("grown2", warm=True)
    leader = old.members[0].node

    def formed(generation: Generation) -> str:
        soon = world.now < grown_at - 2.0 - STOP_S + 0.9 * apart_s()
        return (
            f"grown again after {world.now - grown_at:.1f} s"
            if soon and generation.why is ChangeReason.SCALE_UP
            else ""
        )

    text = f"{fresh.name} came and is not taken in, --scale-up-interval was {every_s} for {leader}"
    until = world.now + every_s + world.spec.join_window_s + LINK_PATIENCE_S + 2.0
    calm.expect(world, Expected("3", text, until, lambda view: fresh.name in inside(view), formed))


def false_proof(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """Links show the death of a node that lives: one start is lost to it, and it is in the next world."""
    spares = set(calm.view(world).members) - {place.node for place in old.members}
    if node.workers is None or not world.links or spares or len(old.members) < 2:
        return
    world.prove_falsely(node)

    proven = node.core.facts.registration.create_revision

    def came_back(generation: Generation, _: Go) -> str:
        facts = node.core.facts
        registered = facts.registration.create_revision not in (0, proven) and facts.registration.joined_at is not None
        back = registered and world.local(node) > (facts.registration.joined_at or 0.0) + 0.02
        return f"{node.name} is back and costs another start" if back and generation.index(node.name) is None else ""

    def done(view: StoreView) -> bool:
        return went(view) > old.g and node.name in inside(view) and view.generation is not None

    text = f"{node.name} was taken for dead, lives, and is not in the world again"
    until = (
        world.now
        + 2 * STOP_S
        + BATCH_S
        + world.spec.join_window_s
        + (world.spec.scale_up_interval_s or SCALE_UP_INTERVAL_S)
    )
    calm.expect(world, Expected("6", text, until, done, went=came_back))


def everybody_starts_again(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """Every agent is killed and started again on a machine that shows that the old ones are dead."""
    dead = [one for one in world.nodes.values() if one.alive and one.exit_code is None]
    for one in dead:
        world.kill_agent(one)

    def again(host: str) -> None:
        fresh = world.start_node(host, warm=True)
        for one in dead:
            world.after(0.4, lambda one=one: world.prove_dead_to(fresh, one))  # type: ignore[misc]

    for one in dead:
        world.after(world.random.uniform(0.05, 0.5), lambda host=one.host: again(host))  # type: ignore[misc]
    until = world.now + world.spec.lease_ttl_s + 2 * world.spec.join_window_s + LINK_PATIENCE_S + STOP_S
    text = f"all were started again, everybody saw the old ones dead, and nothing starts by {until:.0f}"
    calm.expect(world, Expected("6", text, until, lambda view: went(view) > old.g))


def loss_in_plan(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """While workers are asked to leave, a node is lost: nobody goes on waiting for it."""
    if old.index(node.name) is None or len(old.members) < max(3, world.spec.np.low + 2):
        return
    lost = world.nodes[world.random.choice([place.node for place in old.members if place.node != node.name])]
    world.drain(node)
    delay = BATCH_S + world.random.uniform(0.05, 0.3)
    kind = world.seed // 4 % 3
    if kind == 1:
        lost = node  # The one that leaves dies before it has left.

    def wrong() -> None:
        if lost.exit_code is not None:
            return  # It has left already.
        if kind < 2:
            world.kill_node(lost)
        elif not world.fail_in_plan(lost):
            return
        until = world.now + 2 * world.spec.lease_ttl_s + NOTICE_S + 2 * STOP_S
        if lost.workers is None:  # They have saved: the others go on saving.
            until += SAVE_LIMIT_S + GRACE_MAX_S
        text = f"a planned stop went wrong on {lost.name}, and the others do not start by {until:.0f}"
        calm.expect(world, Expected("6", text, until, lambda view: went(view) > old.g))

    world.after(delay, wrong)


def lease_lost_at_gate(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A script fails, and while others stop, somebody revokes the lease of one that has stopped: it is soon back."""
    if node.workers is None or len(old.members) < 2:
        return
    world.end_worker(node, node.workers, 1)

    def look() -> None:
        for one in world.nodes.values():
            if one.core.phase is Phase.GATED and one.lease is not None and one.alive:
                world.log(f"{one.name}: its lease is revoked")
                world.store.revoke(one.lease)
                world.deliver()
                world.after(0.1, lambda one=one: calm.expect_return(world, one))  # type: ignore[misc]
                return
        if world.now < began + STOP_S:
            world.after(0.02, look)

    began = world.now
    look()


def walled(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A node comes for whom there is room and whom nobody can connect to: it is taken in without a link."""
    if not world.links or world.spec.ips or set(calm.view(world).members) != {place.node for place in old.members}:
        return
    if any(one.core.facts.memory.scaled_up_at is not None for one in world.nodes.values()):
        return
    world.scale_to(len(old.members) + 1)
    fresh = world.start_node("walled", warm=True)
    fresh.unlinkable = True
    until = world.now + LINK_PATIENCE_S + world.spec.join_window_s + STOP_S
    calm.expect(world, Expected("3", f"{fresh.name} is not taken in", until, lambda view: fresh.name in inside(view)))


def long_outage(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """The store is away for longer than the limit: all stop, and start again soon after it is back."""
    seconds = world.spec.etcd_outage_timeout_s + world.spec.lease_ttl_s + 3.0
    if world.seed % 8 == 4:  # It is there, and nobody reaches it: every lease ends.
        for one in world.nodes.values():
            world.astray_for(one, seconds)
    else:
        world.away_for(seconds)
    until = world.now + seconds + 2 * world.spec.lease_ttl_s + world.spec.join_window_s + LINK_PATIENCE_S + 2 * STOP_S
    text = f"the store is back, and nothing starts by {until:.0f}"
    calm.expect(world, Expected("7", text, until, lambda view: went(view) > old.g))


def long_astray(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A member does not reach the store for longer than the limit: the others go on without it."""
    index = old.index(node.name)
    if world.seed % 8 == 4:
        _growth_while_first_is_astray(world, old)
        return
    if not world.links or not index or len(old.members) <= world.spec.np.low:
        return
    began = world.now

    def formed(generation: Generation) -> str:
        # A planned change may begin before anybody knows of it; at its gate nobody is waited for so long.
        soon = world.now < began + 0.9 * world.spec.etcd_outage_timeout_s and generation.g == old.g + 1
        without = generation.index(node.name) is None
        return f"{node.name} does not reach the store, works on, and is left out" if soon and without else ""

    longest = world.spec.etcd_outage_timeout_s + 2 * world.spec.lease_ttl_s
    world.astray_for(node, 2 * longest)
    until = world.now + longest + NOTICE_S + STOP_S
    text = f"{node.name} is away for longer than the limit, and nobody goes on without it"
    done: Callable[[StoreView], bool] = lambda view: went(view) > old.g and node.name not in inside(view)  # noqa: E731
    calm.expect(world, Expected("6", text, until, done, formed))


def _growth_while_first_is_astray(world: World, old: Generation) -> None:
    """The first does not reach the store, the next proposes, and a node comes for whom there is room."""
    ttl_s, first = world.spec.lease_ttl_s, world.nodes[old.members[0].node]
    world.scale_to(world.size + 3)
    world.astray_for(first, 1.5 * ttl_s)

    def comes() -> None:
        world.start_node("meanwhile", warm=True)

    for at in (0.6, 0.75, 1.1):
        world.after(at * ttl_s, comes)


def failure_while_astray(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A script fails while a member does not reach the store: that one is waited for at the gate, but not for long."""
    index, ttl_s = old.index(node.name), world.spec.lease_ttl_s
    if not world.links or not index or len(old.members) <= max(2, world.spec.np.low):
        return
    first = world.nodes[old.members[0].node]
    short = world.random.random() < 0.5
    world.astray_for(node, ttl_s + 1.0 if short else 12 * ttl_s)

    until = world.now + 4 * ttl_s + 2 * STOP_S
    text = f"{node.name} does not reach the store, and the others wait for it for too long"

    def formed(generation: Generation) -> str:
        return (
            f"{node.name} counts as lost, and it is heard" if short and generation.why is ChangeReason.NODE_LOST else ""
        )

    def fails() -> None:
        workers = first.workers
        if workers is None:
            return
        world.end_worker(first, workers, 1)
        if first.workers is not workers or workers.broken:  # No planned change came before it.
            calm.expect(world, Expected("6", text, until, lambda view: went(view) > old.g, formed))

    world.after(0.8 * ttl_s, fails)


def split(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A machine is cut from the others and reaches the store: they go on without it, for free."""
    view = calm.view(world)
    if old.index(node.name) is None or len(old.members) <= max(world.spec.np.low, 1) or view.go is None:
        return
    world.job.work_s += 70.0  # So that there is still work when it comes back.
    charged, failures = view.go.value.budget.charged, world.job.failures
    # Of two the first goes on; if somebody has joined by then, whoever is cut off goes.
    out = {node.name, old.members[-1].node} if len(old.members) == 2 else {node.name}
    longer = world.seed % 64 == 60  # Than it is kept out.
    apart_for(world, node, 110.0 if longer else REACH_S + world.random.uniform(10.0, 40.0))

    # With heartbeats a single machine that the others do not reach is evicted before its workers give up.
    evicts = (ChangeReason.NODE_LOST, ChangeReason.LEFT, ChangeReason.JOINED) if world.heartbeats_on else ()
    expected = (ChangeReason.FAILURE, ChangeReason.QUARANTINED, ChangeReason.SCALE_UP, *evicts)

    def formed(generation: Generation) -> str:
        return "" if generation.why in expected else f"{generation.why} in a split network"

    def free(generation: Generation, go: Go) -> str:
        own = world.job.failures - failures  # A script may fail while it saves.
        return "" if go.budget.charged <= charged + own else f"{go.budget} after {charged} and a split network"

    until = world.now + 2 * REACH_S + 3.0 + 3 * STOP_S  # A worker may fail besides: then they wait a second time.
    text = f"{node.name} is cut from the others, and they do not go on without {' or '.join(sorted(out))}"
    done: Callable[[StoreView], bool] = lambda view: went(view) > old.g and not out <= inside(view)  # noqa: E731
    calm.expect(world, Expected("a split network", text, until, done, formed, free))
    if longer and world.links and len(old.members) > 2:

        def joins(generation: Generation) -> str:
            before = generation.before.nodes if generation.before is not None else ()
            fresh = generation.index(node.name) is not None and node.name not in before
            back = node.apart and generation.why is ChangeReason.SCALE_UP and fresh
            return f"{node.name} joins while nobody reaches it" if back else ""

        text = f"{node.name} is cut from the others for ever"
        calm.expect(world, Expected("a split network", text, world.now + 200.0, lambda _: not node.apart, joins))


def silent(world: World, calm: Calm, node: Node, old: Generation) -> None:
    """A machine is switched off, frozen or cut off without a sign: the others go on before its lease has ended."""
    if not world.heartbeats_on or old.index(node.name) is None or len(old.members) <= world.spec.np.low:
        return
    kind = world.seed // 4 % 3
    if kind == 0:
        world.kill_node(node)
    elif kind == 1:
        node.frozen = True
        world.after(25.0, lambda: thaw(world, node))
    else:
        cut_for(world, node, 25.0)
    lease_ended = world.now + world.spec.lease_ttl_s
    until = world.now + SILENT_TIMEOUTS * world.spec.silence_timeout_s + SILENT_MORE_S

    def out() -> None:
        world.counts["a silent node was out before its lease ended"] += world.now < lease_ended

    def stopped(view: StoreView) -> bool:
        generation = view.generation.value if view.generation is not None else None
        return generation is not None and generation.g > old.g and generation.index(node.name) is None

    text = f"{node.name} is silent, and the others do not go on without it by {until:.1f}"
    calm.expect(world, Expected("silence", text, until, stopped, then=out))


SITUATIONS: tuple[Callable[[World, Calm, Node, Generation], None], ...] = (
    crash, failure, drains, shrink, growth, false_proof, everybody_starts_again, loss_in_plan,
    lease_lost_at_gate, walled, long_outage, long_astray, failure_while_astray, silent,
)  # fmt: skip
