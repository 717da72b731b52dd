"""Who is missing while a job waits, and why, in words."""

from __future__ import annotations

from launcher.job.absent_nodes import absent_nodes, words
from tests.support.job_transcript import Job


def test_hosts_of_ips_that_have_not_come_are_left_to_the_proposers_sentence() -> None:
    job = Job("3", ips=("host-c", "host-a", "host-b"))
    job.join("a")
    assert job.decide(0.0).reason == "1 of 3 nodes is here; waiting for host-c, host-b"
    assert absent_nodes(job.view) == ()


def test_nodes_that_are_there_and_do_not_count_are_named_with_the_reason() -> None:
    job = Job("3", slots=4)
    job.join("a b")
    job.join("c", slots=2)
    job.drain("b")
    assert absent_nodes(job.view, {"a": "refused", "c": "refused"}) == (
        "a is registered, but this node cannot connect to it: refused",
        "b does not count: it is leaving (SIGTERM)",
        "c does not count: it offers 2 workers per node, the job uses 4",
    )


def test_where_nobody_is_known_by_name_nothing_is_added() -> None:
    job = Job("3")
    job.join("a")
    assert absent_nodes(job.view) == ()
    assert words(()) == ""


def test_a_sentence_names_five_and_counts_the_rest() -> None:
    job = Job("9", slots=4)
    job.join(" ".join(f"n{number}" for number in range(9)), slots=2)
    said = words(absent_nodes(job.view))
    assert said.startswith("; n0 does not count: it offers 2 workers per node, the job uses 4; n1 does not")
    assert said.endswith("; and 4 more")
    assert said.count("does not count") == 5
