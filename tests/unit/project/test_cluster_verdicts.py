"""How the tests on real hosts tell a second world from a machine that wakes."""

from __future__ import annotations

from tests.cluster.verdicts import Diary, World, holes, second_worlds, worlds_of


def diary(world: str, rank: int, *steps: tuple[int, float]) -> Diary:
    return Diary(world, f"{world} {rank} host{rank} {100 + rank}", steps)


def test_a_step_that_a_machine_notes_when_it_wakes_was_made_when_the_others_noted_it() -> None:
    worlds = worlds_of(
        [
            diary("1", 0, (1, 10.0), (2, 10.1)),
            diary("1", 1, (1, 10.0), (2, 16.5)),
            diary("2", 0, (3, 16.0), (4, 16.1)),
        ]
    )
    assert worlds == [World("1", 1, 2, 10.0, 10.1), World("2", 3, 4, 16.0, 16.1)]
    assert second_worlds(worlds) == []
    assert holes(worlds, 4) == []


def test_a_world_that_makes_a_step_after_the_next_one_began_is_a_second_one() -> None:
    worlds = worlds_of(
        [
            diary("1", 0, (1, 10.0), (2, 10.1)),
            diary("1", 1, (1, 10.0), (2, 10.1), (3, 16.5)),
            diary("2", 0, (3, 16.0), (4, 16.1)),
        ]
    )
    assert second_worlds(worlds) == ["1 made a step 0.500 s after 2 had begun"]
