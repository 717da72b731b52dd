"""A split network: who is left out, who says so, what it costs, and when the machine is back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from elastic.core.agent.actions import StopWorkers
from elastic.core.agent.events import PeersUnreachable
from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import FormGeneration, Reason
from elastic.core.model import Budget, ChangeReason, Go, Outcome, OutcomeKind, Predecessor, Quarantine, WorkerExit
from elastic.core.partition import nodes_to_exclude, nodes_to_probe, not_reached_by
from elastic.core.quarantine import HOSTS_MAX, UNREACHABLE_MAX, blame, with_unreachable
from elastic.core.restart_policy import PROGRESS_RUN_S
from elastic.core.text import SPLIT
from tests.support.agent_harness import Bench
from tests.support.job_transcript import Job, nodes_of, worker_exit
from tests.support.strategies import KEYS

# --- who is left out ----------------------------------------------------------------------------------------------


def test_one_that_nobody_reaches_is_left_out_and_not_those_that_miss_it() -> None:
    assert nodes_to_exclude("abcd", {"a": "d", "b": "d", "c": "d", "d": "abc"}) == {"d": ["a", "b", "c"]}


def test_also_if_it_is_the_first() -> None:
    assert nodes_to_exclude("abcd", {"a": "bcd", "b": "a"}) == {"a": ["b", "c", "d"]}


def test_of_two_that_do_not_reach_each_other_the_later_one_is_left_out_whoever_of_them_says_so() -> None:
    assert nodes_to_exclude("abc", {"b": "c"}) == nodes_to_exclude("abc", {"c": "b"}) == {"c": ["b"]}


def test_of_two_halves_the_one_with_the_first_goes_on() -> None:
    assert [*nodes_to_exclude("abcd", {"a": "bd", "c": "bd"})] == ["d", "b"]


def test_who_goes_on_reaches_each_other_whatever_is_said() -> None:
    unreached = {"a": "c", "b": "d", "c": "e", "e": "a"}
    out = nodes_to_exclude("abcdef", unreached)
    left = set("abcdef") - set(out)
    assert not any(two in unreached.get(one, "") for one in left for two in left)
    assert "f" in left


def far(names: Sequence[str], rack: Collection[str]) -> dict[str, list[str]]:
    """Whom each of these does not reach if the ways between a rack and all others are closed."""
    return {
        name: [other for other in nodes_to_probe(names, name) if (other in rack) is not (name in rack)]
        for name in names
    }


def test_in_a_large_world_a_rack_goes_and_not_the_first_whom_all_of_it_miss() -> None:
    names = [f"n{number}" for number in range(100)]
    for rack in ({name for place, name in enumerate(names) if place % 3 == 1}, {*names[20:60]}):
        assert {*nodes_to_exclude(names, far(names, rack))} == rack


def test_the_larger_part_goes_on_and_who_is_left_out_is_missed_by_somebody() -> None:
    names = [f"n{number}" for number in range(100)]
    out = nodes_to_exclude(names, far(names, {*names[40:]}))
    assert {*out} == {*names[:40]}
    assert all(out.values())


def test_who_is_lost_is_in_no_part() -> None:
    assert nodes_to_exclude("abcd", {"a": "d", "b": "d", "c": "d"}, lost="d") == {}
    assert nodes_to_exclude("abcd", {"a": "cd", "b": "cd"}, lost="b") == {"a": ["c", "d"]}


def test_one_that_many_of_a_part_miss_goes_and_not_they() -> None:
    assert nodes_to_exclude("abcdef", {"b": "cde"}) == {"b": ["c", "d", "e"]}


def test_what_is_said_of_oneself_or_of_others_than_these_nodes_does_not_count() -> None:
    assert nodes_to_exclude("ab", {"a": "a", "b": "x", "x": "a"}) == {}


def test_many_that_do_not_reach_a_machine_are_counted() -> None:
    assert not_reached_by(["a"]) == "a cannot connect to it"
    assert not_reached_by(["a", "b", "c"]) == "a, b and c cannot connect to it"
    assert not_reached_by([*"abcdefg"]) == "a, b, c, d and 3 more cannot connect to it"


# --- the gate -----------------------------------------------------------------------------------------------------


def split(
    job: Job, first: str, *, now: float = 1.0, unreached_by: Mapping[str, Sequence[str]] = {}, **unreached: str
) -> FormGeneration:
    """The workers of `first` were given up; each node of the newest world says whom it did not reach."""
    exits = (worker_exit(code=-15, failure=FailureClass.PARTITION, why=SPLIT),)
    for place in job.generation.members:
        how = {"unreached": tuple({**unreached_by, **unreached}.get(place.node, ""))}
        if place.node == first:
            job.ended(place.node, OutcomeKind.FAILED, exits=exits, **how)
        else:
            job.stopped(place.node, **how)
    return job.form(now, Reason.FAILED)


def running(np: str = "1:4", nodes: str = "a b c d", **spec: Any) -> Job:
    job = Job(np, join_window_s=0.0, scale_up_interval_s=0.0, **spec)
    job.join(nodes, link=9000)
    job.hear(nodes)
    job.form(0.0, Reason.FORMED)
    return job


def test_the_next_world_starts_without_the_machine_and_says_who_does_not_reach_it() -> None:
    job = running()
    assert split(job, "a", a="d", b="d", d="abc").reason == f"{SPLIT}: host-a cannot connect to host-d"
    form = job.form(2.0, Reason.QUARANTINED)
    assert nodes_of(form) == ["a", "b", "c"]
    assert form.reason == "host-d is quarantined for 60 s: host-a, host-b and host-c cannot connect to it"
    opened = job.open(2.0)
    assert opened.go.note == "does not count against --max-restarts: host-d is quarantined"
    assert (opened.go.budget.charged, opened.go.budget.consecutive_failures, opened.go.budget.machine_faults) == (
        0,
        0,
        0,
    )


def test_the_proposer_leaves_itself_out_if_it_is_the_one_that_is_cut_off() -> None:
    job = running()
    split(job, "b", b="a", c="a")
    assert nodes_of(job.form(2.0, Reason.QUARANTINED)) == ["b", "c", "d"]


def test_below_the_minimum_all_start_again_and_nothing_is_charged() -> None:
    job = running(np="4:4")
    split(job, "a", a="d")
    opened = job.open(2.0)
    assert (opened.go.budget, opened.go.note) == (Budget(), f"does not count against --max-restarts: {SPLIT}")


def test_without_a_cooldown_nobody_is_kept_out() -> None:
    job = running(host_cooldown_s=0.0)
    split(job, "a", a="d")
    assert job.open(2.0).go.budget == Budget()


def test_a_failure_of_a_script_beside_it_is_charged_and_leaves_nobody_out() -> None:
    job = running()
    job.failed("b", unreached=("d",))
    job.stopped("a c d")
    job.form(1.0, Reason.FAILED)
    assert job.open(2.0).go.budget.charged == 1


def test_a_peer_that_was_lost_on_a_closed_way_is_free_and_leaves_the_machine_out() -> None:
    job = running()
    job.failed("a", failure=FailureClass.SECONDARY, unreached=("d",))
    job.stopped("b c d")
    job.form(1.0, Reason.FAILED)
    assert nodes_of(job.form(2.0, Reason.QUARANTINED)) == ["a", "b", "c"]


def test_a_node_that_was_lost_is_apart_from_nobody() -> None:
    job = running()
    job.vanish("d")
    job.hear("a b c")
    job.ended(
        "a",
        OutcomeKind.FAILED,
        exits=(worker_exit(code=-15, failure=FailureClass.PARTITION, why=SPLIT),),
        unreached=("d",),
    )
    job.stopped("b c")
    assert nodes_of(job.form(1.0, Reason.LOST)) == ["a", "b", "c"]
    assert job.open(2.0).go.budget.hosts == ()


def test_a_rack_is_left_out_at_once_and_counted_and_nobody_of_it_is_a_newcomer_at_the_next_failure() -> None:
    names = [f"n{number}" for number in range(140)]
    rack = set(names[-60:])
    job = running(np="1:200", nodes=" ".join(names))
    split(job, "n0", unreached_by=far(names, rack))
    form = job.form(2.0, Reason.QUARANTINED)
    assert nodes_of(form) == names[:-60]
    assert form.reason.endswith("; 56 more are quarantined")
    assert len(form.reason) < 500
    assert job.open(2.0).go.note == "does not count against --max-restarts: 60 hosts are quarantined"
    job.decide(2.0)
    job.hear(" ".join(names[:-60]))
    job.failed("n1")
    job.stopped(" ".join(node for node in nodes_of(form) if node != "n1"))
    job.form(3.0, Reason.FAILED)
    job.open(4.0)
    assert job.wait(70.0, Reason.TRAINING).reason.endswith("; 56 more are quarantined")


# --- the way back -------------------------------------------------------------------------------------------------


def test_when_its_time_is_over_it_is_back_once_the_proposer_reaches_it() -> None:
    job = running()
    split(job, "a", a="d", b="d")
    job.form(2.0, Reason.QUARANTINED)
    job.open(2.0)
    job.hear("a b c")
    assert job.wait(10.0, Reason.TRAINING).reason.endswith("; host-d is quarantined for 52 s more")
    assert job.wait(100.0, Reason.TRAINING).reason.endswith("; host-d is quarantined until it can be reached")
    job.hear("a b c d")
    assert nodes_of(job.form(101.0, Reason.SCALED_UP)) == ["a", "b", "c", "d"]


def test_it_is_taken_at_once_where_the_job_cannot_run_without_it() -> None:
    job = running(np="3:4")
    split(job, "a", a="d", b="d")
    job.form(2.0, Reason.QUARANTINED)
    job.open(2.0)
    job.hear("a b")
    job.vanish("c")
    job.stopped("a b")
    assert nodes_of(job.form(3.0, Reason.LOST)) == ["a", "b", "d"]


def test_a_second_time_it_is_kept_out_for_twice_as_long() -> None:
    job = running()
    for now, left_s in ((10.0, 60.0), (100.0, 120.0)):
        split(job, "a", now=now, a="d")
        job.form(now, Reason.QUARANTINED)
        job.open(now)
        assert [one.left_s for one in job.view.budget.hosts] == [left_s]
        job.decide(now)
        assert nodes_of(job.form(now + left_s, Reason.SCALED_UP))[-1] == "d"
        job.stopped("a b c", step=int(now))
        job.open(now + left_s)


def test_to_wait_for_long_is_no_progress_so_that_it_is_kept_out_for_longer_each_time() -> None:
    job = running()
    for now, left_s in ((10.0, 60.0), (100.0, 120.0)):
        exits = (worker_exit(code=-15, failure=FailureClass.PARTITION, why=SPLIT),)
        job.ended("a", OutcomeKind.FAILED, exits=exits, unreached=("d",), ran_s=2 * PROGRESS_RUN_S)
        job.stopped("b c d", ran_s=2 * PROGRESS_RUN_S)
        job.form(now, Reason.FAILED)
        job.form(now, Reason.QUARANTINED)
        job.open(now)
        assert [one.left_s for one in job.view.budget.hosts] == [left_s]
        job.decide(now)
        job.form(now + left_s, Reason.SCALED_UP)
        job.stopped("a b c")
        job.open(now + left_s)


def test_a_machine_that_has_left_is_not_waited_for() -> None:
    job = running()
    split(job, "a", a="d", b="d")
    job.form(2.0, Reason.QUARANTINED)
    job.open(2.0)
    job.decide(2.0)
    job.vanish("d")
    job.hear("a b c")
    assert job.wait(100.0, Reason.TRAINING).reason == "training with 3 nodes"


def test_who_took_part_in_progress_is_like_any_other_again() -> None:
    job = running()
    split(job, "a", a="d")
    job.form(2.0, Reason.QUARANTINED)
    job.open(2.0)
    job.decide(2.0)
    job.form(100.0, Reason.SCALED_UP)
    job.stopped("a b c", step=5)
    job.open(100.0)
    job.drain("b")
    job.decide(101.0)
    job.form(102.0, Reason.DRAINED)
    job.stopped("a b c d", step=9)
    assert job.open(103.0).go.budget.hosts == ()


def test_hosts_that_are_apart_leave_room_for_the_others_and_are_not_more_than_documents_hold() -> None:
    known = tuple(Quarantine(f"old-{number}", failures=1) for number in range(20))
    hosts = with_unreachable(known, {f"out-{number}": "x" * 300 for number in range(1000)})
    assert len(hosts) == HOSTS_MAX + UNREACHABLE_MAX <= 512, "what documents hold"
    assert {one.unreachable for one in hosts if one.host.startswith("out")} == {True}


def test_failures_of_others_do_not_have_it_forgotten() -> None:
    """It would be a newcomer at once, also where it cannot be reached."""
    out = tuple(
        Quarantine(f"out-{number}", times=1, left_s=60.0, unreachable=True) for number in range(UNREACHABLE_MAX)
    )
    ends = [
        Outcome(ended=OutcomeKind.FAILED, over=True, host=f"host-{number}", exits=(worker_exit(),))
        for number in range(40)
    ]
    found = blame(out, ends).hosts
    assert len(found) == HOSTS_MAX + UNREACHABLE_MAX
    assert {one for one in found if one.unreachable} == {*out}


# --- the agent ----------------------------------------------------------------------------------------------------


def waiting(np: str = "1:3", nodes: str = "a b c", **spec: Any) -> Bench:
    bench = Bench("b", np, after="a", **spec)
    bench.world(1, nodes, why=ChangeReason.FIRST)
    bench.go(1)
    return bench


EXIT = WorkerExit(rank=1, code=-15, words="it waited", failure=FailureClass.PARTITION, why=SPLIT)


def test_an_agent_says_whom_it_does_not_reach_and_its_outcome_does_too() -> None:
    bench = waiting()
    bench.tell(PeersUnreachable(1, ("c",)))
    assert bench.lines[-1] == (
        "workers are stalled, and c cannot be reached from this node; if this lasts, the job continues without the "
        "host that is cut off"
    )
    assert bench.stops == []
    bench.world(2, "a b c", why=ChangeReason.FAILURE, before=Predecessor(1, ("a", "b", "c"), ChangeReason.FAILURE))
    bench.gone()
    assert (bench.outcomes[1].ended, bench.outcomes[1].unreached) == (OutcomeKind.STOPPED, ("c",))


def test_workers_that_have_waited_for_too_long_count_as_failed() -> None:
    bench = waiting()
    bench.tell(PeersUnreachable(1, ("c",), (EXIT,)))
    assert bench.stops == [(1, 2.0)]
    bench.gone()
    assert bench.outcomes[1].exits == (EXIT,)
    assert bench.outcomes[1].unreached == ("c",)


def test_a_way_that_is_open_again_is_said_and_forgotten() -> None:
    bench = waiting()
    bench.tell(PeersUnreachable(1, ("c",)), PeersUnreachable(1, ()))
    assert bench.lines[-1] == "the workers continue, or this node can reach every node of its generation again"
    assert bench.facts.workers.unreached == ()


def test_where_the_job_needs_them_workers_wait_on_and_it_is_said_once() -> None:
    bench = waiting("3:3")
    bench.tell(PeersUnreachable(1, ("c",)), PeersUnreachable(1, ("c",), (EXIT,)), PeersUnreachable(1, ("c",), (EXIT,)))
    assert bench.stops == []
    words = "at least 3 nodes must run (--np), so the workers wait until it can be reached, or a spare joins"
    assert [line for line in bench.lines if "reached" in line] == [
        f"workers are stalled, and c cannot be reached from this node; {words}"
    ]


def proposing(np: str, nodes: str) -> Bench:
    """The first of three or more, with workers that wait. Those beyond `np` are spares."""
    bench = Bench("a", np)
    for node in nodes.split():
        bench.others(node)
    bench.hears = frozenset(nodes.split())
    bench.look()
    return bench


def test_the_proposer_knows_of_a_spare_that_can_take_the_place() -> None:
    bench = proposing("3:3", "b c d")
    assert bench.starts == [1]
    bench.tell(PeersUnreachable(1, ("c",)))
    assert bench.lines[-1].endswith("if this lasts, the job continues without the host that is cut off")
    bench.tell(PeersUnreachable(1, ("c",), (EXIT,)))
    assert bench.outcomes[1].unreached == ("c",)
    assert bench.outcomes[1].ended is OutcomeKind.FAILED


def test_a_proposer_that_reaches_nobody_leaves_its_place_to_a_spare() -> None:
    bench = proposing("3:3", "b c d")
    bench.tell(PeersUnreachable(1, ("b", "c"), (EXIT,)))
    assert bench.outcomes[1].ended is OutcomeKind.FAILED


def test_where_spares_are_too_few_it_waits_on() -> None:
    bench = proposing("4:4", "b c d e")
    bench.tell(PeersUnreachable(1, ("b", "c"), (EXIT,)))
    assert bench.stops == []


def test_what_workers_say_while_they_are_stopped_does_not_open_a_way() -> None:
    """Otherwise nobody would be left out, and the failure would be blamed on whoever gave up first."""
    bench = waiting()
    bench.tell(PeersUnreachable(1, ("c",), (EXIT,)), PeersUnreachable(1, ()))
    assert "every node of this world can be reached" not in bench.lines[-1]
    bench.gone()
    assert bench.outcomes[1].unreached == ("c",)


def test_without_a_cooldown_workers_wait_on() -> None:
    bench = waiting(host_cooldown_s=0.0)
    bench.tell(PeersUnreachable(1, ("c",), (EXIT,)))
    assert bench.stops == []
    assert "no host is quarantined (--host-cooldown 0)" in bench.lines[-1]


def test_workers_that_are_to_save_together_are_not_waited_for_either() -> None:
    bench = waiting()
    bench.world(2, "a b c d", why=ChangeReason.SCALE_UP, before=Predecessor(1, ("a", "b", "c"), ChangeReason.SCALE_UP))
    bench.tell(PeersUnreachable(1, ("c",), (EXIT,)))
    assert [stop.planned for stop in bench.every(StopWorkers)] == [True, False]
    assert bench.outcomes[1].ended is OutcomeKind.FAILED


def left_out(np: str, *, left_s: float) -> Bench:
    """Node b is registered, and generation 2 runs without it: the others did not reach its host."""
    bench = Bench("b", np, after="a")
    budget = Budget(
        hosts=(Quarantine("host-b", times=1, g=1, left_s=left_s, words="a cannot connect to it", unreachable=True),)
    )
    bench.shelf.put(KEYS.go, Go(g=2, master="host-a:7000", budget=budget))
    bench.world(2, "a c", why=ChangeReason.QUARANTINED)
    return bench


def test_a_node_that_is_left_out_is_told_until_when_and_that_the_way_must_be_open() -> None:
    assert left_out("1:3", left_s=60.0).lines[-1].endswith(" UTC: a cannot connect to it; it rejoins automatically")
    told = "quarantined until it can be reached: a cannot connect to it; it rejoins automatically"
    assert left_out("1:3", left_s=0.0).lines[-1] == told
    assert left_out("1:2", left_s=0.0).lines[-1].startswith("spare: "), "there is no room for it in any case"


def test_what_is_said_of_another_generation_does_not_count() -> None:
    bench = waiting()
    bench.tell(PeersUnreachable(9, ("c",), (EXIT,)))
    assert (bench.stops, bench.facts.workers.unreached) == ([], ())
