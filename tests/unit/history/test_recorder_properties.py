"""Whatever happens to an agent, and whatever its workers say: its notes raise nothing, and phases have no gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.core.agent.events import ProcessProvenDead
from elastic.core.agent.state import Phase
from elastic.core.ps.model import ClusterSpec
from launcher.history.ps_recovery_recorder import PsRecoveryRecorder
from launcher.history.recovery import Recovery, begun
from launcher.history.recovery_recorder import RecoveryRecorder
from tests.support.agent_happenings import HAPPENINGS
from tests.support.agent_harness import Bench, running, serving
from tests.support.recorder_harness import NotedAgent


class Collective(NotedAgent[RecoveryRecorder]):
    """The second of two nodes, whose worker runs."""

    def __init__(self) -> None:
        super().__init__(RecoveryRecorder("b", -1.0))
        self.bench = running(watch=self.watch)

    def stands(self, g: int) -> None:
        self.timeline.working(g, 0, self.agent.now, self.agent.now, 7)


class Seated(NotedAgent[PsRecoveryRecorder]):
    """The second of two nodes, which has a server and a worker."""

    def __init__(self) -> None:
        super().__init__(PsRecoveryRecorder("b", -1.0))
        self.bench = serving(watch=self.watch)

    def stands(self, g: int) -> None:
        for local_rank in (1, 0):
            self.timeline.working(g, local_rank, self.agent.now, self.agent.now)


Noted = Collective | Seated


def revision(noted: Noted, nodes: str, *, leaving: bool = False, again: bool = False) -> None:
    """The next revision of a roster."""
    stored = noted.agent.shelf.view.generation
    if isinstance(noted, Collective) or stored is None:
        return
    rev = ClusterSpec.of(stored.value).rev + 1
    noted.agent.roster(rev, nodes, since=rev if again else 0, leaving=leaving, g=stored.value.g)


def dies(bench: Bench) -> None:
    """The link to the other node closes."""
    stored = bench.shelf.view.members.get("a")
    if stored is not None:
        bench.tell(ProcessProvenDead("a", stored.create_revision, "host-a", bench.now))


def starts_again(noted: Noted) -> None:
    """A world, or a revision, in which this node's processes start again."""
    if isinstance(noted, Collective):
        HAPPENINGS["the next world has this node"](noted.agent)
        noted.agent.gone()
        HAPPENINGS["go"](noted.agent)
    else:
        noted.agent.exits(0, 1)
        revision(noted, "a b", again=True)
    noted.timeline.spawned(g(noted), noted.agent.now)


def comes_back(noted: Noted) -> None:
    """The same, and they do their work."""
    starts_again(noted)
    noted.stands(g(noted))


def g(noted: Noted) -> int:
    return noted.agent.facts.workers.g


WORDS: dict[str, Callable[[Noted], object]] = {
    "its processes run": lambda noted: noted.timeline.spawned(g(noted), noted.agent.now),
    "one has failed": lambda noted: noted.timeline.failed(g(noted), noted.agent.now - 0.1, noted.agent.now),
    "one is in the group": lambda noted: noted.timeline.grouped(g(noted), 1, noted.agent.now, noted.agent.now),
    "one has its state": lambda noted: noted.timeline.restored(g(noted), 3, 0.0, noted.agent.now),
    "all do their work": lambda noted: noted.stands(g(noted)),
    "a word of an older world": lambda noted: noted.stands(g(noted) - 1),
    "it starts again": starts_again,
    "it starts again and does its work": comes_back,
    "a revision": lambda noted: revision(noted, "a b"),
    "a revision without the other": lambda noted: revision(noted, "b"),
    "a revision without this node": lambda noted: revision(noted, "a"),
    "a revision that lets this node leave": lambda noted: revision(noted, "a b", leaving=True),
    "a revision that starts this node again": lambda noted: revision(noted, "a b", again=True),
    "the link to the other closes": lambda noted: dies(noted.agent),
}


def check(found: Recovery) -> None:
    """What holds of every recovery."""
    assert found.phases
    assert all(length >= 0 for _, length in found.phases)
    assert found.line
    noted = begun(found, "it was lost", {"detect": 0.1, "assign": 1.0, "decide": 0.1, "publish": 0.1})
    assert all(length >= 0 for _, length in noted.phases)
    assert len({mark for mark, _ in noted.phases}) == len(noted.phases), "no phase is there twice"
    assert noted.line


@pytest.mark.parametrize("kind", [Collective, Seated])
@settings(max_examples=150)
@given(happenings=st.lists(st.sampled_from(sorted([*HAPPENINGS, *WORDS, *WORDS])), min_size=3, max_size=30))
def test_no_order_of_events_and_words_raises_or_leaves_a_gap(kind: Callable[[], Noted], happenings: list[str]) -> None:
    noted = kind()
    for name in happenings:
        noted.agent.now += 0.01
        if name in WORDS:
            WORDS[name](noted)
        else:
            HAPPENINGS[name](noted.agent)
        due_at = noted.timeline.due_at
        if due_at is not None and (found := noted.timeline.take(max(due_at, noted.agent.now))) is not None:
            check(found)
        if noted.agent.phase is Phase.ENDED:
            break
    if (found := noted.timeline.end()) is not None:
        check(found)
    assert noted.timeline.end() is None, "it is told once"
