"""The IDs of runs, and which values are logged again after a rollback; no tracker is installed for these tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elastic.integrations import trackers
from elastic.integrations.run_identity import RunIdentity, recorded_id
from elastic.integrations.step_guard import StepGuard, file_guard

WORKER = {"RANK": "0", "WORLD_SIZE": "2", "ELASTIC_JOB_ID": "digits", "ELASTIC_FENCE": "abc/3", "ELASTIC_RUN": "1"}


def test_the_id_is_the_same_in_each_generation() -> None:
    later = RunIdentity.of({**WORKER, "ELASTIC_FENCE": "abc/4", "RANK": "1"})
    assert later.run_id() == RunIdentity.of(WORKER).run_id()


@pytest.mark.parametrize(
    "other",
    [{"ELASTIC_RUN": "2"}, {"ELASTIC_FENCE": "def/3"}, {"ELASTIC_JOB_ID": "letters"}],
    ids=lambda it: next(iter(it)),
)
def test_another_run_of_the_job_has_another_id(other: dict[str, str]) -> None:
    assert RunIdentity.of({**WORKER, **other}).run_id() != RunIdentity.of(WORKER).run_id()


def test_without_its_variable_it_is_the_first_run() -> None:
    assert RunIdentity.of({name: text for name, text in WORKER.items() if name != "ELASTIC_RUN"}) == RunIdentity.of(
        WORKER
    )


@pytest.mark.parametrize("job_id", ["a/b #?%:c", "ü" * 80, "x" * 300])
def test_an_id_is_short_and_has_no_special_characters(job_id: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{11,64}", RunIdentity(job_id, "abc", "1").run_id())


def test_outside_elastic_launch_each_new_id_is_another_one() -> None:
    alone = RunIdentity.of({})
    assert alone.run_id() != alone.run_id()


def test_the_recorded_id_is_kept_when_etcd_came_back_empty(tmp_path: Path) -> None:
    first = recorded_id(RunIdentity("digits", "abc", "2"), tmp_path)
    assert recorded_id(RunIdentity("digits", "def", "1"), tmp_path) == first
    assert recorded_id(RunIdentity("digits", "def", "1"), tmp_path) == first
    assert recorded_id(RunIdentity("digits", "def", "2"), tmp_path) != first


def test_outside_elastic_launch_a_folder_continues_its_run(tmp_path: Path) -> None:
    alone = RunIdentity.of({})
    assert recorded_id(alone, tmp_path) == recorded_id(alone, tmp_path)


def test_a_rerun_has_an_id_of_its_own(tmp_path: Path) -> None:
    first, second = (recorded_id(RunIdentity("digits", "abc", run), tmp_path) for run in ("1", "2"))
    assert first != second
    assert recorded_id(RunIdentity("digits", "abc", "2"), tmp_path) == second


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": "x"}'])
def test_a_damaged_record_is_replaced(content: str, tmp_path: Path) -> None:
    own = RunIdentity("digits", "abc", "1")
    (tmp_path / "run.json").write_text(content)
    assert recorded_id(own, tmp_path) == own.run_id()
    assert json.loads((tmp_path / "run.json").read_text())["id"] == own.run_id()


def test_what_the_user_has_set_stays() -> None:
    given = {
        "WANDB_RUN_ID": "mine",
        "WANDB_RESUME": "must",
        "TENSORBOARD_LOGGING_DIR": "/logs",
        "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": "3",
        "MLFLOW_RUN_CONTEXT": '{"team": "vision", "elastic.run": "other"}',
    }
    environ = dict(given)
    trackers.set_defaults(environ, "digits-1", "/tensorboard")
    assert json.loads(environ.pop("MLFLOW_RUN_CONTEXT")) == json.loads(given.pop("MLFLOW_RUN_CONTEXT"))
    assert environ == given


def test_a_run_with_an_id_of_the_user_is_continued_too() -> None:
    environ = {"WANDB_RUN_ID": "mine"}
    trackers.set_defaults(environ, "digits-1", "/tensorboard")
    assert (environ["WANDB_RUN_ID"], environ["WANDB_RESUME"]) == ("mine", "allow")


def test_mlflow_runs_get_the_tag_beside_those_of_the_user() -> None:
    environ = {"MLFLOW_RUN_CONTEXT": '{"team": "vision"}'}
    trackers.set_defaults(environ, "digits-1", "/tensorboard")
    assert json.loads(environ["MLFLOW_RUN_CONTEXT"]) == {"team": "vision", "elastic.run": "digits-1"}


def test_values_of_a_step_that_was_logged_are_dropped_by_name() -> None:
    guard = StepGuard(lambda: {"loss": 10, "accuracy": 5})
    assert guard.new({"loss": 1.0, "accuracy": 0.5, "rate": 0.1}, 10) == {"accuracy": 0.5, "rate": 0.1}
    assert guard.new({"loss": 1.0}, 11) == {"loss": 1.0}


def test_a_process_may_log_a_step_as_often_as_it_likes() -> None:
    guard = StepGuard(dict)
    assert [guard.new({"loss": 1.0}, 3), guard.new({"loss": 1.0}, 3)] == [{"loss": 1.0}] * 2


def test_values_without_a_step_are_not_held_back() -> None:
    assert StepGuard(lambda: {"loss": 10}).new({"loss": 1.0}, None) == {"loss": 1.0}


def test_names_are_compared_as_the_tracker_keeps_them() -> None:
    guard = StepGuard(lambda: {"loss_a_": 10})
    assert guard.new({"loss(a)": 1.0, "loss(b)": 1.0}, 10, trackers.name_in_mlflow) == {"loss(b)": 1.0}


def test_the_next_generation_knows_what_was_logged(tmp_path: Path) -> None:
    path = tmp_path / "trackers" / "wandb-digits.json"
    first = file_guard(path)
    first.new({"loss": 1.0, "accuracy": 0.5}, 7)
    first.new({"loss": 1.0}, 8)
    assert file_guard(path).new({"loss": 1.0, "accuracy": 0.5}, 8) == {"accuracy": 0.5}


def test_a_step_that_comes_again_does_not_lower_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "wandb-digits.json"
    file_guard(path).new({"loss": 1.0}, 8)
    file_guard(path).new({"loss": 1.0, "rate": 0.1}, 5)
    assert json.loads(path.read_text()) == {"loss": 8, "rate": 5}


@pytest.mark.parametrize("content", ["", "[1]", '{"loss": "many"}'])
def test_a_damaged_record_holds_nothing_back_and_is_said(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wandb-digits.json"
    path.write_text(content)
    assert file_guard(path).new({"loss": 1.0}, 1) == {"loss": 1.0}
    assert "cannot be read" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_does_not_end_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trackers").write_text("a file")
    assert file_guard(tmp_path / "trackers" / "wandb-digits.json").new({"loss": 1.0}, 1) == {"loss": 1.0}
    assert "cannot be written" in capsys.readouterr().err


def test_other_ranks_set_and_log_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {**WORKER, "RANK": "1", "ELASTIC_CHECKPOINT_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    tracked = trackers.prepare(4)
    assert tracked.new_to_wandb({"loss": 1.0}, 5) == tracked.new_to_mlflow({"loss": 1.0}, 5) == {}
    assert tracked.summary_writer() is None
    assert tracked.find_mlflow_run() is None
    assert list(tmp_path.iterdir()) == []


def test_loggers_of_another_kind_are_left_alone(tmp_path: Path) -> None:
    class CSVLogger:
        __slots__ = ()

    trackers.TrackedRun("digits-1", tmp_path).attach([CSVLogger()])
