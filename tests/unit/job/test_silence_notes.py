"""The notes about silent nodes and evicted hosts, from what the nodes say that could be asked."""

from __future__ import annotations

from msgspec.structs import replace

from launcher.job.silence_notes import silence_notes
from launcher.job.status import JobStatus, describe
from launcher.job.status_text import rows
from launcher.wire.inspect_messages import EvictedHost, NodeSnapshot, SilentNode
from tests.support.inspect_documents import window
from tests.support.job_status import generation, view


def job(*registered: str) -> JobStatus:
    """A job of a-1, which leads, b-1 and c-1, of which these are registered."""
    return describe(view(*registered, newest=generation(1, "a-1", "b-1", "c-1"), go=1, leader="a-1"), "j")


def says(
    node: str, *, silent: dict[str, float] | None = None, evicted: dict[str, tuple[str, float]] | None = None
) -> NodeSnapshot:
    return replace(
        window(),
        node=node,
        silent=tuple(SilentNode(node=name, silent_s=seconds) for name, seconds in (silent or {}).items()),
        evicted=tuple(
            EvictedHost(host=host, node=name, counts_in_s=seconds) for host, (name, seconds) in (evicted or {}).items()
        ),
    )


def test_a_silent_node_is_noted_with_the_node_that_hears_nothing_and_for_how_long() -> None:
    found = silence_notes(job("a-1", "b-1", "c-1"), {"a-1": says("a-1", silent={"c-1": 1.24})})
    assert found == {"c-1": "a-1 has received nothing from it for 1.2 s"}


def test_the_snapshot_of_the_leader_takes_precedence_where_others_know_of_a_node_too() -> None:
    told = {"a-1": says("a-1", silent={"c-1": 1.0}), "b-1": says("b-1", silent={"c-1": 9.0, "a-1": 2.0})}
    assert silence_notes(job("a-1", "b-1", "c-1"), told) == {
        "a-1": "b-1 has received nothing from it for 2.0 s",
        "c-1": "a-1 has received nothing from it for 1.0 s",
    }


def test_a_node_on_an_evicted_host_is_noted_with_the_minutes_for_which_only_its_lease_counts() -> None:
    told = {"b-1": says("b-1", evicted={"c": ("c-0", 481.0)})}
    words = "c-0 on this host was evicted; for 9 min, nodes on it are not evicted for silence"
    assert silence_notes(job("a-1", "b-1", "c-1"), told) == {"c-1": words}


def test_a_lost_node_that_was_evicted_says_so_and_has_no_further_note() -> None:
    told = {"a-1": says("a-1", silent={"c-1": 1.5}, evicted={"c": ("c-1", 599.0)})}
    assert silence_notes(job("a-1", "b-1"), told) == {"c-1": "evicted because it was silent"}
    assert silence_notes(job("a-1", "b-1"), {}) == {}


def test_a_lost_node_that_had_registered_again_after_its_eviction_was_lost_for_another_reason() -> None:
    told = says("a-1", evicted={"c": ("c-1", 599.0)})
    told = replace(told, evicted=tuple(replace(host, returned=True) for host in told.evicted))
    assert silence_notes(job("a-1", "b-1"), {"a-1": told}) == {}


def test_the_table_has_the_note_before_what_else_there_is_to_say() -> None:
    told = {"a-1": says("a-1", evicted={"c": ("c-1", 599.0)})}
    table = rows(job("a-1", "b-1"), told)
    assert [row[-1] for row in table] == ["", "", "evicted because it was silent; no longer registered"]
