"""Ids of nodes: of their host, and never had before."""

from __future__ import annotations

import re

from launcher.agent import node_id


def test_a_hundred_agents_that_start_on_one_host_do_not_share_an_id() -> None:
    """Of marks of four hexadecimal digits two are the same in one of fourteen runs; of these in one of 200,000."""
    assert len({node_id.new_node_id("10.0.0.5") for _ in range(100)}) == 100


def test_an_id_is_known_to_be_of_its_host_and_of_no_other_that_begins_with_it() -> None:
    node = node_id.new_node_id("10.0.0.5")
    assert re.fullmatch(rf"10\.0\.0\.5-{node_id.MARK}", node)
    assert node_id.is_of(node, "10.0.0.5")
    assert not node_id.is_of(node, "10.0.0.55")
    assert not node_id.is_of(node_id.new_node_id("10.0.0.55"), "10.0.0.5")
    assert not node_id.is_of(f"{node}-0", "10.0.0.5")
