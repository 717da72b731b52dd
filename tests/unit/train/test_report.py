"""What `elastic.report` sends, and how often."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch

from elastic.channel.client import ChannelClient
from elastic.channel.messages import METRICS_MAX, PreparationOver, Preparing, Progress, WorkerMessage, encode, said
from elastic.train.report import INTERVAL_S, NAME_MAX, ProgressChannel, one_number


class End:
    """What an agent would hear; it takes nothing while it is `deaf`."""

    def __init__(self) -> None:
        self.heard: list[WorkerMessage] = []
        self.deaf = False

    def send(self, message: WorkerMessage) -> bool:
        if not self.deaf:
            self.heard.append(said.decode(encode(message)))
        return not self.deaf


class Script:
    """A training script and its clock."""

    def __init__(self) -> None:
        self.end = End()
        self.now = 0.0
        self.connected = 0
        self.reporter = ProgressChannel(self.connect, lambda: self.now)

    def connect(self) -> ChannelClient:
        self.connected += 1
        return cast(ChannelClient, self.end)

    def report(self, step: Any = None, loss: Any = None, **metrics: Any) -> None:
        self.reporter.report(step, loss, metrics)
        self.now += INTERVAL_S

    @property
    def progress(self) -> list[Progress]:
        return [message for message in self.end.heard if isinstance(message, Progress)]


class Watched:
    """A number that counts how often it is looked at, as a tensor on a card would be waited for."""

    looked = 0

    def __float__(self) -> float:
        Watched.looked += 1
        return 1.0


@pytest.fixture
def script() -> Script:
    return Script()


def test_step_loss_and_metrics_arrive_as_numbers(script: Script) -> None:
    script.report(step=3, loss=torch.tensor(0.5), accuracy=torch.tensor([0.25]), lr=1, tokens="many")
    assert script.progress == [Progress(3, 1, {"loss": 0.5, "accuracy": 0.25, "lr": 1.0})]


def test_a_thousand_reports_in_a_second_are_two_messages_and_only_their_values_are_looked_at(script: Script) -> None:
    Watched.looked = 0
    for step in range(1000):
        script.now = step / 1000
        script.reporter.report(step, Watched(), {})
    assert len(script.progress) == Watched.looked == 2


def test_what_comes_too_early_for_its_turn_goes_with_the_next_message(script: Script) -> None:
    """A commit and a report of the same step: whichever comes first takes the turn."""
    script.reporter.report(1, 0.5, {})
    script.reporter.report(1, None, {"accuracy": 0.25})
    script.now += INTERVAL_S
    script.reporter.report(2, None, {"accuracy": 0.5})
    script.reporter.report(2, 0.25, {"rate": 1.0})
    script.now += INTERVAL_S
    script.reporter.report(3, 0.125, {})
    script.report(4)
    assert [one.metrics for one in script.progress] == [
        {"loss": 0.5}, {"accuracy": 0.5}, {"loss": 0.125, "rate": 1.0},
    ]  # fmt: skip


def test_the_last_step_arrives_although_it_came_too_early_for_its_turn(script: Script) -> None:
    for step in range(1, 8):
        script.reporter.report(step, torch.tensor(1.0), {})
    script.reporter.report(7, None, {"accuracy": 0.9})
    script.reporter.flush_pending()
    script.reporter.flush_pending()
    assert [(one.step, one.metrics) for one in script.progress] == [(1, {"loss": 1.0}), (7, {"accuracy": 0.9})]


def test_a_script_that_never_reported_says_no_last_word(script: Script) -> None:
    script.reporter.preparing("downloading")
    script.reporter.flush_pending()
    assert script.progress == []


def test_steps_count_up_by_themselves(script: Script) -> None:
    for _ in range(3):
        script.report(loss=0.0)
    script.report(step=10)
    script.report()
    assert [one.step for one in script.progress] == [1, 2, 3, 10, 11]


def test_after_a_commit_a_report_without_a_step_belongs_to_the_newest_one(script: Script) -> None:
    for step in (4, 5):
        script.reporter.commit(step, 0.5, 30)
        script.now += INTERVAL_S
        script.report(accuracy=0.25)
    assert [progress.step for progress in script.progress] == [4, 4, 5, 5]


@pytest.mark.parametrize("value", [math.nan, torch.tensor(math.inf), -math.inf])
def test_what_is_not_finite_is_said_to_be_so(script: Script, value: Any) -> None:
    script.report(1, value)
    assert script.progress == [Progress(1, 1, {"loss": None})]


class Odd:
    """A metric of some library that cannot be computed yet."""

    def __float__(self) -> float:
        return 1 / len(())


@pytest.mark.parametrize(
    "value",
    [None, "1.5", b"1", [1.0], {}, object(), torch.zeros(2), torch.tensor([]), 10**400, 1j, torch.tensor(1j), Odd()],
)
def test_what_is_not_one_number_is_left_out(script: Script, value: Any) -> None:
    assert one_number(value) is None
    script.report(1, value, other=value, good=1.0)
    assert script.progress == [Progress(1, 1, {"good": 1.0})]


@pytest.mark.parametrize("step", [-1, "x", None, math.nan, [], 2**63, torch.zeros(2)])
def test_a_step_that_is_none_does_no_harm(script: Script, step: Any) -> None:
    script.report(step, 0.5)
    script.report(7, 0.5)
    assert script.progress[-1].step == 7
    assert all(0 <= one.step <= 7 for one in script.progress)


def test_a_step_may_be_a_tensor(script: Script) -> None:
    script.report(torch.tensor(5))
    assert [one.step for one in script.progress] == [5]


def test_names_of_any_length_and_number_fit_a_message(script: Script) -> None:
    script.report(1, 0.5, **{f"\ud800{'ü' * 100}{number}": 1.0 for number in range(200)}, **{"x" * 500: 2.0})
    script.report(2, 0.5, **{f"m{number}": 1.0 for number in range(200)})
    first, second = script.progress
    assert (first.metrics["loss"], max(map(len, first.metrics))) == (0.5, NAME_MAX)
    assert len(second.metrics) == METRICS_MAX


def test_an_agent_that_takes_nothing_now_costs_the_report_and_nothing_else(script: Script) -> None:
    script.end.deaf = True
    script.report(1)
    script.end.deaf = False
    script.report(2)
    assert [one.step for one in script.progress] == [2]


def test_without_an_agent_nobody_is_asked_a_second_time() -> None:
    asked: list[int] = []

    def connect() -> None:
        asked.append(1)

    reporter = ProgressChannel(connect, lambda: 0.0)
    Watched.looked = 0
    for step in range(5):
        reporter.report(step, Watched(), {})
    reporter.preparing("downloading")
    reporter.ready()
    reporter.flush_pending()
    assert (asked, Watched.looked) == ([1], 0)


def test_preparing_is_ended_by_ready_or_by_the_first_report_and_only_once(script: Script) -> None:
    script.reporter.ready()
    script.reporter.preparing("downloading")
    script.reporter.ready()
    script.reporter.ready()
    script.reporter.preparing("un\ud800packing" + "." * 2000)
    script.report(1)
    script.report(2)
    kinds = [type(message) for message in script.end.heard]
    assert kinds == [Preparing, PreparationOver, Preparing, PreparationOver, Progress, Progress]
    assert script.connected == 1


def test_a_report_has_the_moment_of_its_step_also_when_it_is_sent_later() -> None:
    script = Script()
    script.now = 5.0
    script.report(1)
    assert [message.at for message in script.progress] == [5.0], "the first step of a worker is told at once"
    script.now = 5.01
    script.report(2)
    script.now = 9.0
    script.reporter.flush_pending()
    assert [(message.step, message.at) for message in script.progress] == [(1, 5.0), (2, 5.01)]


def test_how_many_steps_there_will_be_is_said_once_and_goes_with_each_report(script: Script) -> None:
    script.reporter.report(1, None, {}, 100)
    script.now += INTERVAL_S
    script.report(step=2)
    assert [progress.total for progress in script.progress] == [100, 100]


def test_a_total_that_can_be_asked_is_asked_when_a_report_is_sent_and_nonsense_is_none(script: Script) -> None:
    asked: list[int] = []

    def total() -> int:
        asked.append(len(asked))
        return 7

    for step in range(1000):
        script.now = step / 1000
        script.reporter.report(step, None, {}, total)
    assert [progress.total for progress in script.progress] == [7, 7]
    assert asked == [0, 1]
    script.now += INTERVAL_S
    script.reporter.report(1001, None, {}, -3)
    assert script.progress[-1].total == 0
