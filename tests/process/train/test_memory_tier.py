"""The memory tier between real workers, with the agent's memory of several nodes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import gloo_ranks
from tests.support import node_memories
from tests.support.node_memories import Node

RANKS = "tests.scripts.memory_tier_ranks"


def run(name: str, nodes: list[Node], **given: Any) -> list[Any]:
    """One worker on each of the nodes, in this order."""
    return gloo_ranks.run(RANKS, name, [{"path": node.path, **given} for node in nodes])


class TestReplicated:
    def test_survivors_go_on_from_the_newest_step_that_all_have_and_a_newcomer_receives_it(
        self, tmp_path: Path
    ) -> None:
        with node_memories.nodes(tmp_path, 3) as (a, b, c):
            run("commits", [a, b], g=1, steps=[1, 2, 3])
            assert run("restores", [a, b, c], g=2) == [[3, True, None]] * 3

    def test_a_newcomer_receives_the_state_of_one_survivor_where_they_keep_differing_values(
        self, tmp_path: Path
    ) -> None:
        with node_memories.nodes(tmp_path, 3) as (a, b, c):
            run("commits", [a, b], g=1, steps=[1, 2], differing=True)
            assert run("restores", [a, b, c], g=2) == [[2, True, None]] * 3

    def test_ranks_of_the_same_world_get_their_own_parts_back(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 2) as (a, b):
            run("commits", [a, b], g=1, steps=[4])
            assert run("restores", [b, a], g=2) == [[4, True, [4, 4, 4]], [4, True, [5, 5, 5]]]

    def test_all_workers_of_a_node_read_what_the_first_of_them_wrote(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 1) as (a,):
            run("commits", [a, a], g=1, steps=[1, 2], local_world=2)
            assert run("restores", [a, a], g=2, local_world=2) == [[2, True, [2, 2, 2]], [2, True, [3, 3, 3]]]

    def test_a_worker_that_is_killed_in_the_middle_of_a_commit_leaves_the_step_before(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 1) as (a,):
            child = gloo_ranks.start(
                RANKS, "is_killed", 0, 1, str(tmp_path / "s"), {"path": a.path, "g": 1, "steps": [7, 8]}
            )
            child.output(gloo_ranks.LIMIT_S)
            assert child.returncode == -signal.SIGKILL
            assert run("restores", [a], g=2) == [[8, True, None]]

    def test_nothing_is_kept_and_a_line_says_why_where_memory_is_refused(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 1, limit_bytes=1000) as (a,):
            assert run("commits", [a], g=1, steps=[1, 2]) == [False]
            assert run("restores", [a], g=2) == [None]
        assert len(a.notes) == 1
        assert a.notes[0].startswith("rank 0 saves no in-memory checkpoint: in-memory checkpoints need")


class TestSharded:
    @pytest.mark.parametrize("after", [(0, 2), (3, 0, 2, 4)], ids=["two", "four"])
    def test_any_world_gets_the_whole_state_back_bit_by_bit_without_the_memory_of_one_node(
        self, tmp_path: Path, after: tuple[int, ...]
    ) -> None:
        with node_memories.nodes(tmp_path, 5) as nodes:
            expected = run("commits_shards", nodes[:3], g=1, steps=[10, 11])
            nodes[1].lose()
            assert run("restores_shards", [nodes[i] for i in after], g=2) == [[11, expected[0]]] * len(after)

    def test_with_two_copies_a_single_node_that_is_left_has_the_whole_state(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 3) as (a, b, c):
            expected = run("commits_shards", [a, b, c], g=1, steps=[10, 11], copies=2)
            assert run("restores_shards", [c], g=2) == [[11, expected[0]]]

    def test_without_copies_a_lost_node_leaves_nothing_and_lines_say_so(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 2) as (a, b):
            run("commits_shards", [a, b], g=1, steps=[1], copies=0)
            b.lose()
            assert run("restores_shards", [a, b], g=2) == [None, None]
        assert a.notes[0].startswith("shards have no copy on another node (memory_copies=0)")
        assert a.notes[1].startswith(
            "cannot resume from memory: step 1 of generation 1 is incomplete: the shards of rank 1 are lost"
        )

    def test_a_neighbour_without_room_is_named_and_training_goes_on(self, tmp_path: Path) -> None:
        with node_memories.nodes(tmp_path, 2, limit_bytes=220_000) as (a, b):
            run("commits_shards", [a, b], g=1, steps=[1, 2])
        for node in (a, b):
            assert any(line.startswith("no memory for the copy of another node's shards") for line in node.notes)
            assert any(
                "have no copy on another node: after a node failure they are read from disk" in line
                for line in node.notes
            )
