"""What a process of a node does, from what happens to it and what it says."""

from __future__ import annotations

import pytest

from elastic.channel.messages import (
    AgentLogLine,
    FirstCommit,
    GroupFormed,
    JoiningGroup,
    PreparationOver,
    Preparing,
    Progress,
    RestoreDone,
    Serving,
    WorkerHello,
    WorkerMessage,
)
from elastic.core.ps.model import Role
from launcher.wire.inspect_messages import WorkerState
from launcher.workers.reports.states import WorkerStates
from tests.support.worker_messages import tracked

HELLO = WorkerHello(rank=2, local_rank=0, pid=70, generation=3, stacks_signal=64)


def states(role: Role = Role.WORKER) -> WorkerStates:
    """Two processes of generation 3."""
    made = WorkerStates()
    made.begin(3, (tracked(2 + local, 3, local_rank=local, role=role) for local in (0, 1)), first=True)
    return made


def spawned(role: Role = Role.WORKER) -> WorkerStates:
    made = states(role)
    made.spawned(3, (70, 71), ("", "--no-preload"), 101.0)
    return made


def test_a_process_starts_and_runs_with_its_pid_and_how_it_was_started() -> None:
    made = states()
    assert [one.state for one in made.seen.values()] == [WorkerState.STARTING] * 2
    made.spawned(3, (70, 0), ("", ""), 101.0)
    assert [(one.pid, one.state) for one in made.seen.values()] == [(70, "running"), (0, "starting")]
    assert [one.warm for one in spawned().seen.values()] == [True, False]


def test_what_is_told_of_another_generation_counts_for_nothing() -> None:
    made = states()
    made.spawned(2, (70, 71), ("", ""), 101.0)
    assert made.seen[0].state is WorkerState.STARTING
    assert made.has(3)
    assert not made.has(2)


@pytest.mark.parametrize(
    ("said", "state", "detail"),
    [
        ([Preparing("downloading")], "preparing", "downloading"),
        ([Preparing("downloading"), PreparationOver()], "running", ""),
        ([Progress(13, 4, {}), Preparing("evaluating"), PreparationOver()], "stepping", ""),
        ([Progress(13, 4, {}), HELLO, Preparing("evaluating"), PreparationOver()], "running", ""),
        ([JoiningGroup("rank 3")], "joining", "rank 3"),
        ([JoiningGroup("rank 3"), JoiningGroup("")], "running", ""),
        ([JoiningGroup("rank 3"), GroupFormed(1.0)], "in group", ""),
        ([GroupFormed(1.0), RestoreDone(12)], "restored", "step 12"),
        ([GroupFormed(1.0), RestoreDone(-1)], "restored", "training begins"),
        ([RestoreDone(12), FirstCommit()], "stepping", ""),
        ([RestoreDone(12), Progress(13, 4, {})], "stepping", ""),
        ([Progress(13, 4, {}), HELLO], "running", ""),
        ([Serving()], "stepping", ""),
        ([GroupFormed(), AgentLogLine("a line")], "in group", ""),
    ],
)
def test_what_it_says_is_what_it_does(said: list[WorkerMessage], state: str, detail: str) -> None:
    made = spawned()
    for at, message in enumerate(said):
        made.seen[0].heard(message, 110.0 + at)
    assert (made.seen[0].state, made.seen[0].detail) == (state, detail)
    assert made.seen[1].state is WorkerState.RUNNING


def test_a_server_that_stands_serves() -> None:
    made = spawned(Role.SERVER)
    made.seen[0].heard(Serving(), 110.0)
    assert made.seen[0].state is WorkerState.SERVING


def test_since_counts_from_the_first_word_of_a_state_and_not_from_other_words_for_it() -> None:
    made = spawned()
    made.seen[0].heard(Preparing("downloading"), 110.0)
    made.seen[0].heard(Preparing("unpacking"), 120.0)
    now = made.seen[0].at(130.0)
    assert (now.since_s, now.detail) == (20.0, "unpacking")


def test_who_is_to_end_is_stopping_whatever_it_says_and_its_steps_count() -> None:
    made = spawned()
    made.stopping("because b was lost", 110.0)
    made.seen[0].heard(Progress(13, 4, {"loss": 0.5}), 111.0)
    now = made.seen[0].at(112.0)
    assert (now.state, now.detail, now.step, now.metrics) == ("stopping", "because b was lost", 13, {"loss": 0.5})


def test_who_has_ended_has_a_code_and_words_and_stays_so() -> None:
    made = spawned()
    made.seen[0].exited(-9, "killed by SIGKILL", 110.0)
    made.stopping("because rank 2 failed", 111.0)
    made.seen[0].heard(Progress(13, 4, {}), 112.0)
    now = made.seen[0].at(115.0)
    assert (now.state, now.detail, now.code, now.since_s, now.step) == ("exited", "killed by SIGKILL", -9, 5.0, None)
    assert made.seen[1].state is WorkerState.STOPPING


def test_steps_are_told_with_their_age_and_rates() -> None:
    made = spawned()
    for at in range(21):
        made.seen[0].heard(Progress(10 * at, 4, {}), 110.0 + at)
    now = made.seen[0].at(133.0)
    assert (now.step, now.step_age_s) == (200, 3.0)
    assert [now.rate, now.rate_g] == pytest.approx([10.0, 10.0])
    assert made.seen[1].at(133.0).step_age_s is None


def test_another_program_of_a_workers_shell_script_has_made_no_step_yet() -> None:
    made = spawned()
    made.seen[0].heard(Progress(13, 4, {}), 110.0)
    made.seen[0].heard(HELLO, 111.0)
    assert made.seen[0].at(112.0).step is None


def test_those_run_that_have_not_ended() -> None:
    made = spawned()
    assert made.running == [0, 1]
    made.seen[0].exited(1, "exit 1", 110.0)
    assert made.running == [1]


def test_a_process_is_found_by_its_rank_or_its_seat() -> None:
    made = spawned()
    assert made.named(Role.WORKER, 3) is made.seen[1]
    assert made.named(Role.SERVER, 3) is None
    assert made.named(Role.WORKER, 4) is None


def test_a_node_stepped_when_one_of_its_processes_reported_its_newest_step() -> None:
    made = spawned()
    assert made.stepped_at() == float("-inf")
    made.seen[0].heard(Serving(), 109.0)
    assert made.stepped_at() == float("-inf"), "that is no step"
    made.seen[0].heard(Progress(13, 4, {}), 110.0)
    assert made.stepped_at() == 110.0
    made.seen[1].heard(Progress(13, 4, {}), 111.0)
    assert made.stepped_at() == 111.0
    made.seen[0].heard(Progress(13, 4, {"loss": 0.5}), 112.0)
    assert made.stepped_at() == 111.0, "the process has made no other step"
    made.seen[0].heard(Progress(14, 4, {}), 113.0)
    assert made.stepped_at() == 113.0
    made.begin(4, (tracked(2, 4, local_rank=0),), first=False)
    assert made.stepped_at() == float("-inf"), "steps of another generation do not count"
