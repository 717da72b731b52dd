"""Which members a node looks at before its workers need them."""

from __future__ import annotations

import pytest

from elastic.core.model import ChangeReason, Generation, GenerationMember
from elastic.core.partition import OTHERS_MAX, nodes_to_probe
from launcher.peers.reachability import neighbours_of


def world(names: str) -> Generation:
    members = tuple(GenerationMember(name, f"host-{name}", (7000,), (8000,)) for name in names)
    return Generation(g=1, run=1, leader="t", why=ChangeReason.FIRST, reason="", members=members, slots=1)


@pytest.mark.parametrize(
    ("names", "node", "wanted"),
    [
        ("a", "a", ""),
        ("ab", "a", "b"),
        ("ab", "b", "a"),
        ("abc", "a", "cb"),
        ("abcde", "c", "abd"),
        ("abcde", "e", "ad"),
        ("ab", "z", ""),
    ],
)
def test_a_node_looks_at_the_first_and_at_those_beside_it(names: str, node: str, wanted: str) -> None:
    assert neighbours_of(world(names), node) == tuple(wanted)


@pytest.mark.parametrize("size", range(2, 9))
def test_together_they_look_at_every_way_to_the_first_and_round_the_ring_in_both_directions(size: int) -> None:
    names = "abcdefgh"[:size]
    ways = {(node, other) for node in names for other in neighbours_of(world(names), node)}
    for m_id, name in enumerate(names):
        after = names[(m_id + 1) % size]
        assert {(name, after), (after, name)} <= ways
        assert name == "a" or (name, "a") in ways


def test_while_workers_wait_a_node_looks_at_all_others_of_a_small_world() -> None:
    assert nodes_to_probe("abcd", "c") == ("d", "a", "b")
    assert nodes_to_probe("a", "a") == nodes_to_probe("ab", "z") == ()


def test_in_a_large_world_it_looks_at_the_first_and_at_those_that_come_after_it() -> None:
    names = "".join(chr(ord("A") + number) for number in range(40))
    assert nodes_to_probe(names, "B") == (*names[2 : 2 + OTHERS_MAX], "A")
    assert nodes_to_probe(names, "A") == tuple(names[1 : 1 + OTHERS_MAX])
