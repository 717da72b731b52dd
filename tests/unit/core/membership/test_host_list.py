"""A list of hosts (`--ips`): its order is the order of ranks, each host has one place, and who is missing is named."""

from __future__ import annotations

from elastic.core import listed_hosts
from elastic.core.membership.decision import Reason
from tests.support.job_transcript import Job, nodes_of

LIST = ("host-a", "host-b", "host-c")


def listed(np: str = "3", ips: tuple[str, ...] = LIST) -> Job:
    """A job with a list of hosts."""
    return Job(np, ips=ips, scale_up_interval_s=0.0)


# --- the first start ----------------------------------------------------------------------------------------------


def test_members_stand_in_the_order_of_the_list_whoever_came_first() -> None:
    job = listed()
    job.join("c a b")
    assert nodes_of(job.form(0, Reason.FORMED)) == ["a", "b", "c"]


def test_the_missing_hosts_are_named() -> None:
    job = listed()
    job.join("b")
    assert job.wait(0, Reason.MISSING).reason == "1 of 3 nodes is here; waiting for host-a, host-c"


def test_where_any_of_several_hosts_will_do_they_are_named_with_the_number_that_is_needed() -> None:
    job = listed("2:3")
    job.join("b")
    assert job.wait(0, Reason.MISSING).reason == "1 of 2 nodes is here; waiting for 1 more of host-a, host-c"


def test_the_settling_window_is_for_the_hosts_that_are_missing() -> None:
    job = listed("2:3")
    job.join("c b")
    wait = job.wait(0, Reason.SETTLING)
    assert wait.reason == "2 of 3 nodes are here; waiting 3 s more for host-a"
    assert nodes_of(job.form(3, Reason.FORMED)) == ["b", "c"]


def test_of_many_missing_hosts_a_few_are_named_and_the_rest_is_counted() -> None:
    many = tuple(f"h{number}" for number in range(12))
    assert listed_hosts.missing_hosts_text(many, ["h0"], 11) == "h1, h2, h3, h4, h5, h6, h7, h8 and 3 more"
    assert listed_hosts.missing_hosts_text(many[:10], ["h0"], 9) == "h1, h2, h3, h4, h5, h6, h7, h8 and 1 more"
    assert listed_hosts.missing_hosts_text(LIST, LIST, 2) == "2 more"


def test_a_second_node_of_a_host_is_not_counted() -> None:
    job = listed("2", LIST[:2])
    job.join("a")
    job.join("x", host="host-a")
    assert job.wait(0, Reason.MISSING).reason == "1 of 2 nodes is here; waiting for host-b"


def test_a_node_of_a_host_that_is_not_in_the_list_is_never_taken_in() -> None:
    job = listed("2", LIST[:2])
    job.join("z a")
    job.wait(0, Reason.MISSING)
    job.join("b")
    assert nodes_of(job.form(0, Reason.FORMED)) == ["a", "b"]


# --- while it runs ------------------------------------------------------------------------------------------------


def test_a_host_that_comes_back_takes_its_place_in_the_order_also_rank_0() -> None:
    job = listed()
    job.run("a b c")
    job.vanish("a")
    assert nodes_of(job.form(10, Reason.LOST)) == ["b", "c"]
    job.stopped("b c")
    job.open(11)
    job.join("x", host="host-a")
    assert nodes_of(job.form(20, Reason.SCALED_UP)) == ["x", "b", "c"]


def test_a_second_node_of_a_host_in_the_world_stays_a_spare_although_there_is_room() -> None:
    job = listed("2:3")
    job.run("a b")
    job.join("x", host="host-b")
    wait = job.wait(100, Reason.TRAINING)
    assert wait.reason == "training with 2 nodes, 1 spare"


def test_a_second_node_of_a_host_takes_over_when_the_first_is_lost() -> None:
    job = listed()
    job.run("a b c")
    job.join("x", host="host-b")
    job.wait(5, Reason.TRAINING)
    job.vanish("b")
    assert nodes_of(job.form(10, Reason.LOST)) == ["a", "x", "c"]


def test_a_second_node_of_a_host_takes_over_when_the_first_drains() -> None:
    job = listed("2", LIST[:2])
    job.run("a b")
    job.join("x", host="host-a")
    job.drain("a")
    assert nodes_of(job.form(10, Reason.DRAINED, before=Reason.DRAIN_BATCH)) == ["x", "b"]


def test_of_two_newcomers_of_one_host_the_older_is_taken_and_the_other_is_a_spare() -> None:
    job = listed("2:3")
    job.run("a b")
    job.join("y", host="host-c")
    job.join("x", host="host-c")
    assert nodes_of(job.form(10, Reason.SCALED_UP)) == ["a", "b", "y"]
    job.stopped("a b")
    job.open(11)
    assert job.wait(200, Reason.TRAINING).reason == "training with 3 nodes, 1 spare"


def test_at_the_gate_a_newcomer_takes_its_place_in_the_order() -> None:
    job = listed("1:3")
    job.run("b c")
    job.vanish("c")
    job.form(10, Reason.LOST)
    job.join("a")
    job.decide(10.1)
    assert nodes_of(job.form(10.5, Reason.GATE_JOINED)) == ["a", "b"]


def test_below_the_minimum_the_missing_hosts_are_named() -> None:
    job = listed("3:3")
    job.run("a b c")
    job.vanish("b")
    job.form(10, Reason.LOST)
    job.stopped("a c")
    assert job.wait(11, Reason.BELOW_MIN).reason == ("2 of 3 required nodes are here; waiting for host-b")


def test_when_nobody_of_the_old_world_is_left_the_missing_hosts_are_named_too() -> None:
    job = listed("2:3")
    job.run("a b")
    job.vanish("a b")
    job.join("c")
    assert job.wait(10, Reason.BELOW_MIN).reason == (
        "1 of 2 required nodes is here; waiting for 1 more of host-a, host-b"
    )


def test_a_member_whose_host_the_list_does_not_name_stands_last() -> None:
    job = Job("3")
    job.run("c a b")
    places = job.generation.members
    assert [place.node for place in listed_hosts.sort_by_host(("host-b", "host-a"), places)] == ["b", "a", "c"]
