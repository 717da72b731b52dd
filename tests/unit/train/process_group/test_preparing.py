"""`elastic.preparing` as a call and as a block, as an agent hears it."""

from __future__ import annotations

from typing import cast

import pytest

import elastic
from elastic.channel.client import ChannelClient
from elastic.channel.messages import PreparationOver, Preparing, WorkerMessage
from elastic.train.process_group import preparing
from elastic.train.report import ProgressChannel


class End:
    """What an agent would hear."""

    def __init__(self) -> None:
        self.heard: list[WorkerMessage] = []

    def send(self, message: WorkerMessage) -> bool:
        self.heard.append(message)
        return True


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> End:
    found = End()
    monkeypatch.setattr(preparing, "this_process", ProgressChannel(lambda: cast(ChannelClient, found), lambda: 0.0))
    return found


def test_a_block_prepares_from_its_beginning_to_its_end(end: End) -> None:
    with elastic.preparing("downloading"):
        assert end.heard == [Preparing("downloading")]
    assert end.heard == [Preparing("downloading"), PreparationOver()]


def test_a_call_without_a_block_announces_at_once_and_lasts_until_ready(end: End) -> None:
    elastic.preparing("downloading")
    elastic.preparing("unpacking")
    assert end.heard == [Preparing("downloading"), Preparing("unpacking")]
    elastic.ready()
    elastic.ready()
    assert end.heard[2:] == [PreparationOver()]


def test_an_exception_ends_the_preparation_and_passes(end: End) -> None:
    """The script may catch it and train with what it has: then it must not be taken for one that still prepares."""
    with pytest.raises(OSError, match="no such host"), elastic.preparing("downloading"):
        raise OSError("no such host")
    assert end.heard == [Preparing("downloading"), PreparationOver()]


def test_after_an_inner_block_the_outer_one_still_prepares(end: End) -> None:
    with elastic.preparing("downloading"):
        with elastic.preparing("unpacking"):
            pass
        assert end.heard[2:] == [Preparing("downloading")]
    assert end.heard[3:] == [PreparationOver()]


def test_a_block_that_said_ready_itself_says_it_once(end: End) -> None:
    with elastic.preparing("downloading"):
        elastic.ready()
    assert end.heard == [Preparing("downloading"), PreparationOver()]
