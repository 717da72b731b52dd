"""How large an elastic Job of Kubernetes is to be: elastic-k8s-autoscaler as values."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.k8s.objects import (
    INDEX,
    KubeCondition,
    KubeJob,
    KubeJobSpec,
    KubeJobStatus,
    ObjectMeta,
    Pod,
    PodStatus,
    view_of,
)
from launcher.k8s.sizing import WANTED, KeepSize, ResizeJob, ScalingMemory, ScalingPolicy, ScalingView, decide

POLICY = ScalingPolicy(2, 6, patience_s=100, again_s=500)
NEW = ScalingMemory()


def of(size: int, *, waiting: tuple[int, ...] = (), done: tuple[int, ...] = (), wanted: str = "") -> ScalingView:
    """A Job whose other pods run."""
    others = frozenset(range(size)) - set(waiting) - set(done)
    return ScalingView(size, others, frozenset(waiting), frozenset(done), wanted)


def test_when_all_pods_run_all_that_are_allowed_are_asked_for_at_once() -> None:
    assert decide(of(2), NEW, POLICY, 0.0) == (ResizeJob(6, "all 2 pods running"), NEW)


def test_while_a_pod_starts_nothing_more_is_asked_for() -> None:
    decision, _ = decide(ScalingView(3, running=frozenset({0, 2})), NEW, POLICY, 0.0)
    assert decision == KeepSize("2 of 3 pods running")


def test_pods_that_find_no_machine_are_taken_back_when_patience_is_over_and_not_before() -> None:
    waits = of(6, waiting=(4, 5))
    decision, memory = decide(waits, NEW, POLICY, 1000.0)
    assert decision == KeepSize("2 pods without a machine", 1100.0)
    decision, memory = decide(waits, memory, POLICY, 1099.9)
    assert decision == KeepSize("2 pods without a machine", 1100.0)
    decision, memory = decide(waits, memory, POLICY, 1100.0)
    assert decision == ResizeJob(4, "2 pods found no machine in 100 s")
    assert memory.taken_back == 1100.0


def test_a_pod_that_got_a_machine_in_between_waits_anew_when_it_loses_it() -> None:
    _, memory = decide(of(6, waiting=(5,)), NEW, POLICY, 0.0)
    _, memory = decide(of(6), memory, POLICY, 50.0)
    decision, _ = decide(of(6, waiting=(5,)), memory, POLICY, 120.0)
    assert decision == KeepSize("1 pod without a machine", 220.0)


def test_a_pod_in_the_middle_is_waited_for_because_only_the_last_ones_can_go_and_they_run() -> None:
    view = of(6, waiting=(0, 3))
    _, memory = decide(view, NEW, POLICY, 0.0)
    decision, _ = decide(view, memory, POLICY, 1000.0)
    assert decision == KeepSize("2 pods without a machine")


def test_the_least_number_stays_even_when_none_has_a_machine() -> None:
    view = of(6, waiting=(0, 1, 2, 3, 4, 5))
    _, memory = decide(view, NEW, POLICY, 0.0)
    decision, memory = decide(view, memory, POLICY, 100.0)
    assert decision == ResizeJob(2, "4 pods found no machine in 100 s")
    decision, _ = decide(of(2, waiting=(0, 1)), memory, POLICY, 100.0)
    assert decision == KeepSize("2 pods without a machine")


def test_after_pods_were_taken_back_more_are_asked_for_only_after_a_while() -> None:
    memory = ScalingMemory(taken_back=1000.0)
    decision, memory = decide(of(4), memory, POLICY, 1499.0)
    assert decision == KeepSize("all 4 pods running; no machine was available for more", 1500.0)
    decision, _ = decide(of(4), memory, POLICY, 1500.0)
    assert decision == ResizeJob(6, "all 4 pods running")


def test_with_all_that_are_allowed_nothing_is_to_do() -> None:
    assert decide(of(6), NEW, POLICY, 0.0) == (KeepSize("all 6 pods running, the maximum"), NEW)


@pytest.mark.parametrize(("size", "becomes"), [(1, 2), (9, 6)])
def test_a_job_outside_of_the_range_is_brought_into_it(size: int, becomes: int) -> None:
    assert decide(of(size), NEW, POLICY, 0.0) == (ResizeJob(becomes, "--np allows 2 to 6"), NEW)


@pytest.mark.parametrize(
    ("wanted", "decision"),
    [
        ("3", ResizeJob(3, f"the annotation {WANTED} is 3")),
        ("4", KeepSize(f"the annotation {WANTED} is 4")),
        ("60", ResizeJob(6, f"the annotation {WANTED} is 60, and --np allows 2 to 6")),
        ("-1", ResizeJob(2, f"the annotation {WANTED} is -1, and --np allows 2 to 6")),
        ("9" * 5000, KeepSize(f"the annotation {WANTED} is {'9' * 40!r}, not a number; write one, or remove it")),
        ("all", KeepSize(f"the annotation {WANTED} is 'all', not a number; write one, or remove it")),
    ],
)
def test_the_annotation_counts_instead_of_the_machines(wanted: str, decision: KeepSize | ResizeJob) -> None:
    assert decide(of(4, wanted=wanted), NEW, POLICY, 0.0) == (decision, NEW)


def test_a_job_that_completes_is_not_grown() -> None:
    decision, _ = decide(of(4, done=(1,)), NEW, POLICY, 0.0)
    assert decision == KeepSize("1 of 4 pods ended", 100.0)


def test_a_job_of_which_a_node_was_drained_grows_again_when_the_others_go_on() -> None:
    _, memory = decide(of(4, done=(1,)), NEW, POLICY, 0.0)
    _, memory = decide(of(4, done=(1, 2)), memory, POLICY, 60.0)
    decision, memory = decide(of(4, done=(1, 2)), memory, POLICY, 159.0)
    assert decision == KeepSize("2 of 4 pods ended", 160.0)
    decision, memory = decide(of(4, done=(1, 2)), memory, POLICY, 160.0)
    assert decision == ResizeJob(6, "2 of 4 pods running, the others ended")
    decision, _ = decide(of(6, done=(1, 2)), memory, POLICY, 160.0)
    assert decision == KeepSize("4 of 6 pods running, the others ended, the maximum")


def test_pods_without_a_machine_are_taken_back_also_where_a_node_was_drained() -> None:
    _, memory = decide(of(4, done=(1,), waiting=(3,)), NEW, POLICY, 0.0)
    decision, _ = decide(of(4, done=(1,), waiting=(3,)), memory, POLICY, 100.0)
    assert decision == ResizeJob(3, "1 pod found no machine in 100 s")


def test_a_pod_without_a_machine_does_not_keep_a_job_open_that_has_completed() -> None:
    _, memory = decide(of(4, done=(0,), waiting=(2, 3)), NEW, POLICY, 0.0)
    completed = of(4, done=(0, 1), waiting=(2, 3))
    decision, memory = decide(completed, memory, POLICY, 5.0)
    assert decision == KeepSize("2 of 4 pods ended, and none runs", 105.0)
    decision, _ = decide(completed, memory, POLICY, 105.0)
    assert decision == ResizeJob(2, "the others have ended")


def test_after_a_start_of_its_own_it_waits_before_it_takes_a_job_for_completed() -> None:
    decision, memory = decide(of(4, done=(0,), waiting=(1, 2, 3)), NEW, POLICY, 1000.0)
    assert decision == KeepSize("1 of 4 pods ended, and none runs", 1100.0)
    _, memory = decide(of(4, done=(0,), waiting=(2, 3)), memory, POLICY, 1100.0)  # It was drained: 1 goes on.
    decision, _ = decide(of(4, done=(0,), waiting=(1, 2)), memory, POLICY, 1101.0)
    assert decision == KeepSize("2 pods without a machine", 1201.0)


def test_a_drained_node_is_no_end_of_the_job_when_all_machines_are_taken_at_once() -> None:
    memory, low = NEW, ScalingPolicy(1, 4, patience_s=100)
    for now in (0.0, 100.0):
        _, memory = decide(of(4, done=(0,)), memory, low, now)
    gone = of(4, done=(0,), waiting=(1, 2, 3))
    decision, memory = decide(gone, memory, low, 200.0)
    assert decision == KeepSize("3 pods without a machine", 300.0)
    decision, memory = decide(gone, memory, low, 300.0)
    assert decision == ResizeJob(2, "2 pods found no machine in 100 s"), "with index 0 alone the Job would be complete"
    decision, memory = decide(of(2, done=(0,), waiting=(1,)), memory, low, 300.0)
    assert decision == KeepSize("1 pod without a machine")
    decision, memory = decide(of(2, done=(0,), waiting=(1,)), memory, low, 900.0)
    assert decision == KeepSize("1 pod without a machine")
    decision, _ = decide(of(3, done=(0, 1), waiting=(2,)), memory, low, 1000.0)
    assert decision == KeepSize("2 of 3 pods ended, and none runs", 1100.0), "1 was not drained: it is the end"


def test_a_number_of_somebody_s_own_does_not_complete_a_job_of_which_the_first_were_drained() -> None:
    memory = NEW
    for now in (0.0, 100.0):
        _, memory = decide(of(4, done=(0, 1)), memory, POLICY, now)
    decision, _ = decide(of(4, done=(0, 1), wanted="2"), memory, POLICY, 200.0)
    assert decision == ResizeJob(3, f"the annotation {WANTED} is 2, and the first 2 have ended")
    decision, _ = decide(of(8, done=(0, 1, 2, 3, 4, 5, 6)), memory, POLICY, 0.0)
    assert decision == KeepSize("7 of 8 pods ended", 100.0)


def test_time_in_which_a_job_is_suspended_does_not_show_that_it_has_completed() -> None:
    _, memory = decide(of(4, done=(0,)), NEW, POLICY, 0.0)
    _, memory = decide(ScalingView(4, done=frozenset({0}), suspended=True), memory, POLICY, 50.0)
    decision, _ = decide(of(4, done=(0,), waiting=(1, 2, 3)), memory, POLICY, 500.0)
    assert decision == KeepSize("1 of 4 pods ended, and none runs", 600.0)


def test_the_annotation_does_not_keep_a_job_open_that_has_completed() -> None:
    completed = of(4, done=(0, 1, 2), waiting=(3,), wanted="4")
    _, memory = decide(completed, NEW, POLICY, 0.0)
    decision, _ = decide(completed, memory, POLICY, 100.0)
    assert decision == ResizeJob(3, "the others have ended")
    decision, _ = decide(of(3, done=(0, 1, 2), wanted="4"), NEW, POLICY, 0.0)
    assert decision == KeepSize("3 of 3 pods ended")
    decision, _ = decide(of(4, done=(0,), wanted="3"), NEW, POLICY, 0.0)
    assert decision == ResizeJob(3, f"the annotation {WANTED} is 3")


def test_a_job_that_has_ended_or_is_suspended_is_left_alone() -> None:
    assert decide(ScalingView(2, ended=True), ScalingMemory(taken_back=1.0), POLICY, 0.0) == (
        KeepSize("it has ended"),
        NEW,
    )
    assert decide(ScalingView(2, suspended=True), NEW, POLICY, 0.0) == (KeepSize("it is suspended"), NEW)


indexes = st.frozensets(st.integers(0, 9))


@given(st.integers(0, 10), indexes, indexes, st.floats(0, 2000), st.dictionaries(st.integers(0, 9), st.floats(0, 2000)))
def test_whatever_is_seen_the_size_stays_in_the_range_and_no_running_pod_is_taken(
    size: int, running: frozenset[int], waiting: frozenset[int], now: float, since: dict[int, float]
) -> None:
    view = ScalingView(size, running & frozenset(range(size)), waiting - running)
    decision, _ = decide(view, ScalingMemory(since), POLICY, now)
    if isinstance(decision, ResizeJob):
        assert POLICY.low <= decision.size <= POLICY.high
        if size <= POLICY.high:
            assert all(index < decision.size for index in view.running)


def pod(index: str, phase: str, reason: str = "", *, leaving: bool = False) -> Pod:
    conditions = [KubeCondition("PodScheduled", "False", reason)] if reason else []
    meta = ObjectMeta(annotations={INDEX: index}, deletion_timestamp="2026-01-01T00:00:00Z" if leaving else None)
    return Pod(meta, PodStatus(phase, conditions))


def test_a_pod_counts_by_its_index_and_its_phase() -> None:
    job = KubeJob(ObjectMeta(annotations={WANTED: " 3 "}), KubeJobSpec(6))
    pods = [
        pod("0", "Running"),
        pod("1", "Running", leaving=True),
        pod("2", "Pending", "Unschedulable"),
        pod("3", "Pending", "SchedulingGated"),
        pod("4", "Succeeded"),
        pod("5", "Failed"),
        pod("6", "Running"),  # Above the size: on its way out.
        pod("no number", "Running"),
        pod("1" * 5000, "Running"),
    ]
    assert view_of(job, pods) == ScalingView(6, frozenset({0}), frozenset({2}), frozenset({4}), wanted="3")


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("", set()),
        ("1", {1}),
        ("0,2-4", {0, 2, 3, 4}),
        ("4-9999999999", {4, 5}),
        ("7,a,1-,-3,2-b,5-4,3", {1, 3}),
        ("1" * 5000, set()),
    ],
)
def test_an_index_that_the_job_says_to_be_over_is_done_also_when_its_pod_is_gone(text: str, done: set[int]) -> None:
    for status in (KubeJobStatus(completed_indexes=text), KubeJobStatus(failed_indexes=text)):
        assert view_of(KubeJob(ObjectMeta(), KubeJobSpec(6), status), []) == ScalingView(6, done=frozenset(done))


def test_all_that_is_said_of_indexes_counts_together() -> None:
    job = KubeJob(ObjectMeta(), KubeJobSpec(6), KubeJobStatus(completed_indexes="0", failed_indexes="5"))
    pods = [pod("0", "Running", leaving=True), pod("1", "Succeeded"), pod("2", "Running"), pod("5", "Failed")]
    assert view_of(job, pods) == ScalingView(6, running=frozenset({2}), done=frozenset({0, 1, 5}))


def test_what_the_server_says_beside_what_counts_is_passed_over() -> None:
    said = b"""{"metadata": {"uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}, "kind": "Job",
        "spec": {"completions": 2, "parallelism": 2, "template": {}},
        "status": {"active": 2, "completedIndexes": "0", "failedIndexes": "1",
        "conditions": [{"type": "Complete", "status": "True", "reason": "x"}]}}"""
    assert view_of(msgspec.json.decode(said, type=KubeJob), []) == ScalingView(2, done=frozenset({0, 1}), ended=True)
