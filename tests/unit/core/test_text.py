"""What processes and their logs are called."""

from __future__ import annotations

import pytest

from elastic.core.failure_class import FailureClass
from elastic.core.model import ANY_RANK, WorkerExit
from elastic.core.ps.model import Role
from elastic.core.text import COUNTED, counted_down, failed_processes_text, listed, log_name, process_name
from launcher.logs.file_names import closing_line
from tests.support.job_transcript import worker_exit


def test_each_role_has_its_name_and_its_log() -> None:
    assert [process_name(role, 1) for role in Role] == ["server 1", "heter worker 1", "rank 1"]
    assert [log_name(role, 1) for role in Role] == ["serverlog.1", "heterlog.1", "workerlog.1"]
    assert closing_line(rank=1, g=2, words="exit 0", role=Role.SERVER) == "==== server 1 gen 2 ended: exit 0 ===="


@pytest.mark.parametrize(
    ("sentence", "left", "said"),
    [
        ("training", (), "training"),
        ("training", (5.0,), "training"),
        (f"a joins in {COUNTED}", (41.4,), "a joins in 41 s"),
        (f"a joins in {COUNTED}", (-3.0,), "a joins in 1 s"),
        (f"a for {COUNTED}, b for {COUNTED} more", (600.0, 5.0), "a for 10 min, b for 5 s more"),
        (f"a for {COUNTED}, b for {COUNTED} more", (600.0,), "a for 10 min, b for  more"),
    ],
)
def test_the_times_of_a_sentence_are_counted_down(sentence: str, left: tuple[float, ...], said: str) -> None:
    assert counted_down(sentence, left) == said


def test_ranks_are_listed_without_blanks_and_thousands_are_cut() -> None:
    assert listed([2, 3]) == "[2,3]"
    assert listed(range(5000)).endswith(",63,...]")


def test_failed_ranks_are_named_with_the_log_of_the_first() -> None:
    exits = [worker_exit(4), worker_exit(2)]
    assert failed_processes_text(exits, "h") == "rank=[2,4] failed on host h, see workerlog.4"


def test_an_echo_is_not_named_beside_a_failure() -> None:
    exits = [worker_exit(0, failure=FailureClass.SECONDARY), worker_exit(4)]
    assert failed_processes_text(exits, "h") == "rank=[4] failed on host h, see workerlog.4"


def test_an_echo_alone_is_called_what_it_is() -> None:
    assert (
        failed_processes_text([worker_exit(0, failure=FailureClass.SECONDARY)], "h")
        == "rank=[0] lost a peer on host h, see workerlog.0"
    )


def test_where_nobody_knows_the_log_the_words_that_stand_for_it_say_where_to_look() -> None:
    exits = [WorkerExit(rank=0, code=1, words="x", log="torchrun's own output", failure=FailureClass.SECONDARY)]
    assert failed_processes_text(exits, "h") == "rank=[0] failed or lost a peer on host h, see torchrun's own output"


def test_no_rank_is_named_where_nobody_knows_which_worker_it_was() -> None:
    exits = [WorkerExit(rank=ANY_RANK, code=1, words="x", log="torchrun's own output", failure=FailureClass.SECONDARY)]
    assert failed_processes_text(exits, "h") == "a worker failed or lost a peer on host h, see torchrun's own output"
    assert process_name(Role.WORKER, ANY_RANK) == "a worker"


def test_servers_and_workers_are_told_apart() -> None:
    exits = [worker_exit(1, role=Role.SERVER), worker_exit(1)]
    assert failed_processes_text(exits, "h") == "server=[1] and rank=[1] failed on host h, see serverlog.1"
    assert failed_processes_text([], "h") == "a worker failed on host h"
