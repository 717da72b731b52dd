"""What nodes on the hosts of evicted nodes wait for, in the leader's sentence."""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core.membership.decision import Reason
from elastic.core.membership.evictions import STEADY_S, evicted
from elastic.core.membership.memory import LINK_PATIENCE_S
from elastic.core.model import Budget, Quarantine
from elastic.core.quarantine import NAMED_MAX
from elastic.core.run_deadline import CLOCK_ERROR
from tests.support.job_transcript import Job

GONE_S = 5.0 * (1 + CLOCK_ERROR) + 1.0
"""After an eviction no worker of the node runs any more, with the lease of 5 s."""


def evicting(np: str) -> Job:
    """A job of a and b that has evicted c, which was on host h3, at 10 s, and does not hear it."""
    job = Job(np)
    job.run("a b")
    job.hear("a b")
    job.memory = replace(job.memory, evictions=(evicted("c", "h3", 3, 10.0),))
    return job


def heard(job: Job, nodes: str, since: float) -> None:
    """The leader has heard these nodes since then, too."""
    job.hear(f"a b {nodes}")
    job.memory = replace(job.memory, heard_since=dict.fromkeys(nodes.split(), since))


def test_another_node_on_the_host_is_told_for_how_long_workers_of_the_evicted_one_may_run_there() -> None:
    job = evicting("1:3")
    job.join("d", host="h3")
    heard(job, "d", 11.0)
    wait = job.wait(14.0, Reason.TRAINING)
    until = "until then workers of the evicted node c may run there"
    assert wait.reason == f"training with 2 nodes; h3 may join in 2 s: {until}"
    assert wait.ends == (10.0 + GONE_S,)
    assert wait.until == 10.0 + GONE_S
    job.form(10.0 + GONE_S, Reason.SCALED_UP, Reason.SCALE_UP_SETTLING)


def test_the_evicted_node_is_told_for_how_long_it_must_be_heard() -> None:
    job = evicting("1:3")
    job.join("c", host="h3")
    heard(job, "c", 20.0)
    wait = job.wait(20.5, Reason.TRAINING)
    assert wait.reason == (
        "training with 2 nodes, 1 spare; h3 may join after 2 s more of heartbeats, because c was evicted there"
    )
    assert wait.ends == (20.0 + STEADY_S,)
    job.form(20.0 + STEADY_S, Reason.SCALED_UP, Reason.SCALE_UP_SETTLING)


def test_a_node_that_is_not_heard_is_told_so_without_a_time() -> None:
    job = evicting("1:3")
    job.join("c", host="h3")
    job.wait(20.0, Reason.TRAINING)
    wait = job.wait(20.0 + LINK_PATIENCE_S, Reason.TRAINING)
    assert wait.reason.endswith("; h3 may join after 2 s of heartbeats, because c was evicted there")
    assert wait.ends == ()


def test_below_the_minimum_the_sentence_names_the_host_whose_workers_may_still_run() -> None:
    job = evicting("2:3")
    job.hear("a")
    job.vanish("b")
    job.form(13.0, Reason.LOST)
    job.join("d", host="h3")
    heard(job, "d", 11.0)
    wait = job.wait(14.0, Reason.BELOW_MIN)
    assert wait.reason == (
        "1 of 2 required nodes is here; waiting for 1 more; "
        "h3 may join in 2 s: until then workers of the evicted node c may run there"
    )
    assert wait.ends == (10.0 + GONE_S,)


def test_the_time_of_a_host_that_is_quarantined_comes_before_that_of_one_that_is_held_back() -> None:
    job = evicting("1:3")
    job.join("c", host="h3")
    heard(job, "c", 20.0)
    job.spent(Budget(hosts=(Quarantine("h4", times=1, g=1, left_s=40.0),)))
    wait = job.wait(20.5, Reason.TRAINING)
    assert "h4 is quarantined for 40 s more; h3 may join after 2 s more of heartbeats" in wait.reason
    assert wait.ends == (60.5, 20.0 + STEADY_S)


def test_of_many_hosts_the_first_are_named_and_the_others_counted() -> None:
    job = evicting("2:9")
    many = [f"n{number}" for number in range(6)]
    evictions = [evicted(f"old-{node}", f"host-{node}", 3, 10.0) for node in many]
    job.memory = replace(job.memory, evictions=tuple(evictions))
    job.hear("a")
    job.vanish("b")
    job.form(13.0, Reason.LOST)
    job.join(" ".join(many))
    heard(job, " ".join(many), 11.0)
    wait = job.wait(14.0, Reason.BELOW_MIN)
    assert wait.reason.count(" may join in 2 s: ") == len(wait.ends) == NAMED_MAX
    assert wait.reason.endswith("; 2 more are quarantined")


def test_a_host_without_a_node_is_not_in_the_sentence() -> None:
    assert evicting("1:3").wait(12.0, Reason.TRAINING).reason == "training with 2 nodes"
