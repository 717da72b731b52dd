"""Everything that may happen to an agent, by name."""

from __future__ import annotations

from collections.abc import Callable

from elastic.core.agent.actions import TryPeer
from elastic.core.agent.events import LinksChanged, PeerTried, SilenceChanged
from elastic.core.agent.state import SilentPeer
from elastic.core.model import ChangeReason, FinalStatus, Predecessor
from tests.support.agent_harness import Bench, vouched
from tests.support.strategies import KEYS


def come_back(bench: Bench) -> None:
    """The store answers again."""
    bench.offline = False
    bench.look()


def change_leader(bench: Bench) -> None:
    """The leader is gone; where another node than this one is left, it leads."""
    view = bench.shelf.view
    if view.leader is not None and view.leader.value.node in view.members:
        bench.lose(view.leader.value.node)
    if (left := [node for node in bench.shelf.view.members if node != bench.node]) and bench.shelf.view.leader is None:
        bench.lead(left[0])
        bench.look()


def delete_leader(bench: Bench) -> None:
    """Somebody deletes the leader's key."""
    bench.shelf.delete(KEYS.leader)
    bench.look()


def fall_silent(bench: Bench) -> None:
    """The other node was heard last a second ago."""
    bench.tell(SilenceChanged({"a": SilentPeer(bench.now - 1.0, 1.0, bench.now - 1.0)}))


def try_other(bench: Bench, reached_by: tuple[str, ...]) -> None:
    """The newest trial of the other node is answered."""
    if trials := bench.every(TryPeer):
        bench.tell(PeerTried(trials[-1].number, "a", reached_by, ()))


HAPPENINGS: dict[str, Callable[[Bench], object]] = {
    "the next world has this node": lambda bench: bench.world(newest(bench) + 1, "a b", before=ran(bench)),
    "the next world is without this node": lambda bench: bench.world(newest(bench) + 1, "a", before=ran(bench)),
    "this node is the first of the next world": lambda bench: bench.world(newest(bench) + 1, "b a", before=ran(bench)),
    "go": lambda bench: bench.go(newest(bench)),
    "a worker ends well": lambda bench: bench.exit(0),
    "a worker fails": lambda bench: bench.exit(1),
    "workers are gone": lambda bench: bench.gone(),
    "SIGTERM": lambda bench: bench.drain(),
    "the job has failed": lambda bench: bench.verdict(FinalStatus.FAILED),
    "the registration is lost": lambda bench: bench.unregister() if bench.registered else None,
    "the lease ends": lambda bench: bench.expire() if bench.facts.registration.lease is not None else None,
    "the lease is refreshed": lambda bench: bench.refreshed() if bench.facts.registration.lease is not None else None,
    "the store is gone": lambda bench: setattr(bench, "offline", True),
    "the store is back": come_back,
    "the other node is gone": lambda bench: bench.lose("a") if "a" in bench.shelf.view.members else None,
    "the other node comes": lambda bench: bench.others("a"),
    "the other node comes and listens": lambda bench: bench.others("a", link=9000),
    "the other node is silent": fall_silent,
    "the other node is heard again": lambda bench: bench.tell(SilenceChanged({}, heard=frozenset("a"))),
    "no node reaches the other node": lambda bench: try_other(bench, ()),
    "this node reaches the other node": lambda bench: try_other(bench, (bench.node,)),
    "another node leads": change_leader,
    "nobody leads": delete_leader,
    "others hear it": lambda bench: bench.tell(vouched(bench.now + 30, bench.facts.workers.g)),
    "it hears the others": lambda bench: bench.tell(LinksChanged(frozenset("a"))),
    "a second": lambda bench: bench.at(bench.now + 1),
    "it is called when it wants": lambda bench: bench.at(max(bench.core.wake_at or 0.0, bench.now)),
}


def newest(bench: Bench) -> int:
    """The number of the newest generation in the store."""
    stored = bench.shelf.view.generation
    return stored.value.g if stored is not None else 0


def ran(bench: Bench) -> Predecessor | None:
    """The world that last got its go."""
    view = bench.shelf.view
    if view.go is None or view.generation is None:
        return None
    if view.go.value.g == view.generation.value.g:
        return Predecessor(
            view.go.value.g, tuple(place.node for place in view.generation.value.members), ChangeReason.NODE_LOST
        )
    return view.generation.value.before
