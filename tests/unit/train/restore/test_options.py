"""What a script or its flags ask of a restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.errors import ConfigError
from elastic.train.restore.choose_checkpoint import KnownCheckpoint
from elastic.train.restore.options import RestoreOptions, newest_known, read_options

FLAGS = {"ELASTIC_RESTORE_STEP": "30", "ELASTIC_RESUME_FROM": "/flags", "ELASTIC_ALLOW_ROLLBACK": "1"}


def test_without_words_nothing_is_asked_for() -> None:
    assert read_options({}, None, None, allow_rollback=None) == RestoreOptions(None, None, False)


def test_flags_that_are_empty_ask_for_nothing() -> None:
    assert read_options(dict.fromkeys(FLAGS, ""), None, None, allow_rollback=None) == RestoreOptions(None, None, False)


def test_what_the_call_leaves_open_the_flags_say() -> None:
    assert read_options(FLAGS, None, None, allow_rollback=None) == RestoreOptions(30, "/flags", True)


def test_what_the_call_says_wins_over_the_flags() -> None:
    assert read_options(FLAGS, 0, Path("/call"), allow_rollback=False) == RestoreOptions(0, "/call", False)


@pytest.mark.parametrize(("word", "means"), [("true", True), ("Yes", True), ("on", True), ("0", False), ("no", False)])
def test_a_rollback_is_allowed_by_the_words_for_yes(word: str, means: bool) -> None:
    assert read_options({"ELASTIC_ALLOW_ROLLBACK": word}, None, None, allow_rollback=None).allow_rollback is means


@pytest.mark.parametrize("word", ["-1", "ten", "1.5"])
def test_a_step_that_is_no_number_is_refused_with_its_text(word: str) -> None:
    with pytest.raises(ConfigError, match=f"ELASTIC_RESTORE_STEP is '{word}'; write the number of a step"):
        read_options({"ELASTIC_RESTORE_STEP": word}, None, None, allow_rollback=None)


def test_a_step_in_the_call_does_not_look_at_the_flag() -> None:
    assert read_options({"ELASTIC_RESTORE_STEP": "ten"}, 7, None, allow_rollback=None).step == 7


def test_the_newest_checkpoint_of_the_job_is_read_from_what_the_agent_says() -> None:
    assert newest_known({}) is None
    assert newest_known({"ELASTIC_SAVED": '{"step": 5, "host": "h", "folder": "/f"}'}) == KnownCheckpoint(5, "h", "/f")


def test_what_the_agent_says_of_it_is_refused_where_it_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match=r"cannot parse ELASTIC_SAVED, which is '\{'"):
        newest_known({"ELASTIC_SAVED": "{"})
