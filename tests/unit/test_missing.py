"""Who is missing while a job waits, and why, in words."""

from __future__ import annotations

from elastic.model import Roles
from launcher.missing import missing, words
from tests.unit.views import Job


def test_hosts_of_ips_that_have_not_come_are_named_in_their_order() -> None:
    job = Job("3", ips=("host-c", "host-a", "host-b"))
    job.join("a")
    assert missing(job.view) == ("host-c of --ips has not come", "host-b of --ips has not come")


def test_nodes_that_are_there_and_do_not_count_are_named_with_the_reason() -> None:
    job = Job("3", slots=4)
    job.join("a b")
    job.join("c", slots=2)
    job.drain("b")
    assert missing(job.view, {"a": "refused", "c": "refused"}) == (
        "a is registered but cannot be reached from here: refused",
        "b does not count: it leaves (SIGTERM)",
        "c does not count: it brings 2 cards, the job uses 4",
    )


def test_nodes_of_a_job_with_parameter_servers_may_bring_different_numbers_of_processes() -> None:
    job = Job("2", slots=1, roles=Roles(server_num=1, worker_num=2))
    job.join("a", slots=3)
    assert missing(job.view) == ()


def test_where_nobody_is_known_by_name_nothing_is_added() -> None:
    job = Job("3")
    job.join("a")
    assert missing(job.view) == ()
    assert words(()) == ""


def test_a_sentence_names_five_and_counts_the_rest() -> None:
    job = Job("9", ips=tuple(f"h{number}" for number in range(9)))
    said = words(missing(job.view))
    assert said.startswith("; h0 of --ips has not come; h1 of --ips")
    assert said.endswith("; and 4 more")
    assert said.count("has not come") == 5
