"""What the live status says, and that it fits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from elastic.channel.messages import Progress
from elastic.core.agent.state import Phase
from launcher.config.argv import split_argv
from launcher.config.config import Config
from launcher.config.parse import build
from launcher.terminal.content import BlockContent, block_content
from launcher.terminal.status_block import NARROW, lines
from launcher.terminal.tty import may_draw
from launcher.workers.reports.states import WorkerStates
from tests.support.agent_harness import running
from tests.support.worker_messages import tracked

BLOCK = BlockContent(
    "j1", "generation 2 · 3 of 4 nodes · world 3", "training", "step 293 of 690", 293 / 690, "18.9 steps/s · 0:21 left"
)
TERMINAL = {"TERM": "xterm-256color"}


def texts(block: BlockContent, width: int = 100) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line.decode()) for line in lines(block, width)]


def test_it_has_the_job_its_world_what_goes_on_and_a_bar() -> None:
    rule, job, state, step = texts(BLOCK)
    assert set(rule) == {"─"}
    assert (job, state) == ("j1 · generation 2 · 3 of 4 nodes · world 3", "training")
    assert re.fullmatch(r"step 293 of 690  [━╸╺ ]{24} 42 %  18\.9 steps/s · 0:21 left", step)


def test_the_world_is_counted_against_the_maximum_if_there_is_one() -> None:
    assert [block_content(running(np=np).facts, {}, said="").world for np in ("1:3", "2:2", "1+")] == [
        "generation 1 · 2 of 3 nodes · world 2",
        "generation 1 · 2 of 2 nodes · world 2",
        "generation 1 · 2 nodes · world 2",
    ]


def test_how_far_training_is_stands_there_as_the_first_worker_of_the_node_says_it() -> None:
    workers = WorkerStates()
    workers.begin(1, map(tracked, (1, 0)), first=True)
    for rank in (0, 1):
        for now in (10.0, 20.0):
            workers.seen[rank].heard(Progress(round(now) + rank, 2, {"loss": 0.5}, total=40), now)
    block = block_content(running().facts, workers.seen, said="")
    assert (block.step, block.done, block.rest) == ("step 20 of 40", 0.5, "1.0 steps/s · 0:20 left · loss 0.5")
    leaving = running().facts
    leaving.phase = Phase.STOPPING
    assert block_content(leaving, workers.seen, said="").step == ""


def test_without_a_total_there_is_no_bar_and_without_steps_no_line_of_them() -> None:
    assert texts(BlockContent("j1", "w", "s", "step 3", None, "1.0 steps/s"))[-1] == "step 3  1.0 steps/s"
    assert len(texts(BlockContent("j1", "", "joining"))) == 3


@given(st.text(max_size=120), st.text(max_size=120), st.integers(1, 140))
def test_no_line_is_wider_than_the_terminal_whatever_it_says(world: str, rest: str, width: int) -> None:
    found = texts(BlockContent("j1", world, rest, "step 1", 0.5, rest), width)
    assert bool(found) == (width > NARROW)
    assert all(cell_len(line) < width for line in found)


def config(*flags: str) -> Config:
    return build(split_argv([*flags, "train.py"]), {})


def test_it_is_there_unless_something_says_that_it_should_not() -> None:
    assert may_draw(config(), TERMINAL)


@pytest.mark.parametrize("flag", ["--no-live", "--quiet", "--log-format=json"])
def test_flags_switch_it_off(flag: str) -> None:
    assert not may_draw(config(flag), TERMINAL)


@pytest.mark.parametrize("environ", [{}, {"TERM": "dumb"}, {**TERMINAL, "NO_COLOR": "1"}, {**TERMINAL, "CI": "true"}])
def test_the_environment_switches_it_off(environ: dict[str, str]) -> None:
    assert not may_draw(config(), environ)
