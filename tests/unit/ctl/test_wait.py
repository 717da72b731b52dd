"""What `elastic-ctl wait` waits for, and the exit codes with which it and `status --exit-code` end."""

from __future__ import annotations

import pytest

from elastic.core.model import FinalStatus, Verdict
from launcher.ctl.exit_codes import ENDED, FAILED, NOT_RUNNING, OK, STOPPED, exit_code_of
from launcher.ctl.wait import Condition, condition, reached
from launcher.text.failure_report import HOW_ENDED
from tests.support.job_status import generation, view

RUNS = view("a-1", "b-1", newest=generation(1, "a-1", "b-1"), go=1)
STARTS = view("a-1", "b-1", newest=generation(1, "a-1", "b-1"))
WAITS = view("a-1")


def ended(status: FinalStatus) -> Verdict:
    return Verdict(status=status, reason="so it is", run=1, g=1, at=0.0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("running", Condition("running")),
        ("completed", Condition("completed")),
        ("nodes=3", Condition("running", 3)),
    ],
)
def test_a_condition_is_a_state_or_a_number_of_nodes(text: str, wanted: Condition) -> None:
    assert condition(text) == wanted
    assert str(wanted) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "failed",
        "nodes",
        "nodes=",
        "nodes=0",
        "nodes=x",
        "nodes=-1",
        "nodes=999999999",
        "nodes=00000000011111111",
        "3",
    ],
)
def test_another_text_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match="write running, completed or nodes=N"):
        condition(text)


def test_a_job_that_runs_meets_running_and_its_number_of_nodes() -> None:
    for text in ("running", "nodes=1", "nodes=2"):
        end = reached("j", RUNS, condition(text))
        assert end is not None
        assert (end.code, end.text) == (OK, "Job j runs: generation 1, 2 nodes, world size 4")
    for text in ("completed", "nodes=3"):
        assert reached("j", RUNS, condition(text)) is None


@pytest.mark.parametrize("text", ["running", "completed", "nodes=1"])
def test_a_job_that_forms_or_is_not_there_meets_nothing_yet(text: str) -> None:
    for job in (STARTS, WAITS, view()):
        assert reached("j", job, condition(text)) is None


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (FinalStatus.COMPLETED, "completed", OK),
        (FinalStatus.COMPLETED, "running", OK),
        (FinalStatus.COMPLETED, "nodes=2", ENDED),
        (FinalStatus.FAILED, "completed", FAILED),
        (FinalStatus.FAILED, "running", FAILED),
        (FinalStatus.FAILED, "nodes=2", FAILED),
        (FinalStatus.STOPPED, "completed", STOPPED),
    ],
)
def test_the_end_of_a_job_ends_the_wait(status: FinalStatus, text: str, code: int) -> None:
    end = reached("j", view(verdict=ended(status)), condition(text))
    assert end is not None
    assert (end.code, end.text) == (code, f"Job j {HOW_ENDED[status]}: so it is")


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("running", OK),
        ("completed", OK),
        ("failed", FAILED),
        ("stopped", STOPPED),
        ("starting", NOT_RUNNING),
        ("waiting", NOT_RUNNING),
        ("no nodes", NOT_RUNNING),
        ("unreadable", NOT_RUNNING),
    ],
)
def test_every_state_has_its_exit_code(state: str, code: int) -> None:
    assert exit_code_of(state) == code
