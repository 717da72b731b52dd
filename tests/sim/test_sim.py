"""The core over the in-memory store, on a virtual clock, under seeded faults.

`pytest tests/sim --seed N` replays one run exactly and prints it; without it, `SEEDS` runs and those of `ROSTERS` are
made on every core, and the counts of rows, reasons and faults are printed. A violation names its seed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

from elastic.core.agent.table import TABLE
from elastic.core.membership.decision import Reason
from elastic.core.membership.situation import Situation
from elastic.core.ps import revision
from tests.sim import kinds, life
from tests.sim.calm import SITUATIONS
from tests.sim.life import FAULTS, run_seed
from tests.sim.many import one, settle_memory
from tests.sim.nodes import Violation
from tests.sim.plays.registry import PLAYS, live_play, make_play
from tests.sim.rosters import RosterWorld, live_roster, make_roster, run_roster_seed
from tests.sim.world import World

SEEDS = 2_000
ROSTERS = range(kinds.ROSTERS_FROM, kinds.ROSTERS_FROM + 500)
"""Seeds of parameter-server jobs."""
OF_EACH_PLAY = 10
TEETH_SEEDS = 1_500
DEFECTS = {
    "no mod-revision compare": 1,
    "no create-revision compare": 647,
    "no nursery deadline": 6,
    "no wait for workers at a hand-over": 0,
}
"""What the store and the nursery of a simulated job may lack, and a seed that has seen it: it is looked for from there
on."""
PATCHES: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "a gate that is always open": (Situation, "stopped", lambda *_: True),
    "seats that are free too early": (revision, "tasks_free_at", lambda q, node: q.now),
    "servers that do not start again": (revision.RevisionBuilder, "restart_servers", lambda _: None),
    "a host that is kept out for ever": (
        Situation,
        "quarantined",
        lambda q: frozenset(host for host, _ in q.memory.quarantine_deadlines),
    ),
}
"""What the core may lack."""
OF_ROSTERS = ("seats that are free too early", "servers that do not start again")
STEPS_OF_A_PROPOSAL = ("register", "form", "go", "record", "verdict")


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """A process for each core."""
    with ProcessPoolExecutor(os.cpu_count(), initializer=settle_memory) as made:
        yield made
        made.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def teeth(pool: ProcessPoolExecutor) -> dict[str, Future[str]]:
    """The first violation that each defect causes. Each is looked for by one process; the others have the seeds."""
    return {defect: pool.submit(_first_violation, defect) for defect in (*DEFECTS, *PATCHES)}


@pytest.mark.timeout(600)
def test_every_seed_keeps_every_promise_and_everything_is_taken(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = request.config.getoption("--seed")
    if asked is not None:
        _replay(asked)
        return
    request.getfixturevalue("teeth")  # They begin first.
    pool: ProcessPoolExecutor = request.getfixturevalue("pool")
    counts: Counter[str] = Counter()
    steps = 0
    violations = []
    plays = [seed for play in kinds.PLAYS for seed in kinds.seeds_of(play, OF_EACH_PLAY)]
    for ran in pool.map(one, [*plays, *range(SEEDS), *ROSTERS], chunksize=25):
        counts.update(ran.counts)
        steps += ran.steps
        if ran.violation:
            violations.append(ran.violation)
    expected = [f"row {row.name}" for row in TABLE]
    expected += [f"reason {reason.name}" for reason in Reason]
    expected += [f"fault {fault.__name__}" for fault in FAULTS]
    expected += [f"fault {kind} watch event" for kind in ("late", "lost", "repeated", "split")] + ["fault late write"]
    expected += [f"calm {situation.__name__}" for situation in SITUATIONS]
    expected += ["calm split", "a node gave up on others"]
    expected += [f"play {play}" for play in kinds.PLAYS]
    expected += [f"fault overtaken {step}" for step in ("form", "go", "record", "register")]
    expected += [f"fault store empty after {step}" for step in ("form", "go", "record", "register")]
    expected += ["warm start", "cold start", "workers met at a step", "something was expected and came"]
    expected += ["a server ended by itself", "workers wait for a server", "fault everybody of a roster goes"]
    expected += [f"fault proposer lost after {step}" for step in STEPS_OF_A_PROPOSAL]
    expected += [
        "guarantee 7 was looked at",
        "guarantees 3 and 6 were looked at",
        "a return was looked at",
        "the return of a kept-out host was looked at",
        "a host that was kept out came back",
        "a list of hosts was looked at",
        "nursery killed overdue workers",
        "workers were asked to leave",
        "a successor was prepared",
        "a successor took over",
        "a successor ended as workers started",
        "a successor died",
        "a successor died with its nursery",
        "a nursery died that was a successor",
        "a lock was held by a successor",
    ]
    with capsys.disabled():
        print(f"\n{SEEDS} + {len(ROSTERS)} + {len(plays)} seeds, {steps} events, {len(violations)} violations")
        for name in expected:
            print(f"{counts[name]:8d}  {name}")
    assert not violations, "\n".join(violations[:10])
    assert [name for name in expected if not counts[name]] == []


def test_every_play_has_its_seeds() -> None:
    assert tuple(PLAYS) == kinds.PLAYS


def _replay(seed: int) -> None:
    played, assignments = seed >= kinds.PLAYS_FROM, seed >= kinds.ROSTERS_FROM
    world: World = make_play(seed) if played else make_roster(seed) if assignments else life.make(seed)
    try:
        if played:
            live_play(world)
        else:
            live_roster(world) if isinstance(world, RosterWorld) else life.live(world)
    finally:
        print(f"seed {seed}: --np {world.np}, links {'on' if world.links else 'off'}, {world.spec}")
        print("\n".join(world.trace))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_seed_finds_the_defect(teeth: dict[str, Future[str]], defect: str) -> None:
    found = teeth[defect].result()
    assert found, f"{TEETH_SEEDS} seeds do not see it: {defect}"
    print(found)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("defect", "guarantee"),
    list(zip(PATCHES, ("guarantee 1", "guarantee 1", "liveness", "a bad host"), strict=True)),
    ids=PATCHES,
)
def test_a_seed_finds_what_is_wrong_in_the_core(teeth: dict[str, Future[str]], defect: str, guarantee: str) -> None:
    found = teeth[defect].result()
    assert guarantee in found
    print(found)


def _first_violation(defect: str) -> str:
    """In a process that has the core as it is before and after."""
    with pytest.MonkeyPatch.context() as patch:
        if defect in PATCHES:
            patch.setattr(*PATCHES[defect])
        first = DEFECTS.get(defect, 0)
        seeds = ROSTERS if defect in OF_ROSTERS else range(first, first + TEETH_SEEDS)
        run = run_roster_seed if defect in OF_ROSTERS else partial(run_seed, defect=defect)
        for seed in seeds:
            try:
                run(seed)
            except Violation as violation:
                return str(violation)
    return ""
