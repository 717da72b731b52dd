"""The question before a command does what cannot be undone."""

from __future__ import annotations

import io
import sys

import pytest

from elastic.errors import ConfigError
from launcher.job.confirmation import NotConfirmed, confirm


class Terminal(io.StringIO):
    """Input that a person has typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", ["y\n", "yes\n", " Y \n"])
def test_yes_is_yes(typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    confirm("Stop job j1?", "job j1 continues")
    assert capsys.readouterr().out == "Stop job j1? [y/N] "


@pytest.mark.parametrize("typed", ["", "\n", "n\n", "maybe\n"])
def test_every_other_answer_is_no(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    with pytest.raises(NotConfirmed, match="job j1 continues"):
        confirm("Stop job j1?", "job j1 continues")


@pytest.mark.parametrize("stdin", [io.StringIO("n\n"), None])
def test_without_a_terminal_nobody_is_asked_and_only_data_is_protected(
    stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    confirm("Stop job j1?", "job j1 continues")
    with pytest.raises(ConfigError, match="deletes the record; without a terminal, add --yes"):
        confirm("Delete the record?", "it stays", deletes="it deletes the record")
    assert capsys.readouterr().out == ""
