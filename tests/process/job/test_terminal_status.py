"""The live status of nodes on terminals, during real runs."""

from __future__ import annotations

import re
from signal import SIGKILL, SIGTERM

from tests.support.job_harness import Job, story
from tests.support.terminal import terminal

STEPS = """
import sys, time
import elastic
for step in range(1, 100_000):
    elastic.report(step, loss=1 / step, total=100_000)
    sys.stdout.write(f"\\rbar {step}%")
    if step % 50 == 0:
        sys.stdout.write(f"\\rstep {step} is done\\n")
    sys.stdout.flush()
    time.sleep(0.01)
"""
RULE = "─" * 20


@story
async def test_a_terminal_shows_the_world_and_a_bar_below_the_output_through_a_loss_and_is_left_clean(job: Job) -> None:
    script = (str(job.write("steps.py", STEPS)),)
    with terminal(job.told) as seen:
        first = await job.node("--np", "2", script=script, within=seen.within)
        await seen.shows("1 of 2 nodes is here; waiting for 1 more", RULE)
        second = await job.node("--np", "2", script=script)
        await seen.shows("generation 1 · 2 of 2 nodes · world 2", "of 100000", "steps/s", "loss", "left", RULE)
        second.signal(SIGKILL)
        await seen.shows("generation 2 · 1 of 2 nodes · world 1", "was lost", "of 100000")
        seen.resize(60, 16)
        await seen.shows("generation 2", "─" * 59, "of 100000")
        assert sum(line.startswith("─") for line in seen.lines) <= 2, "a terminal that reflows may keep a rule"
        first.signal(SIGTERM)
        assert await first.exits() == 143
        await seen.shows("left; the job stays open")
        assert not seen.screen.cursor.hidden
        assert seen.lines[-1].endswith("left; the job stays open")
        assert not [line for line in seen.all_lines if re.match(r"step \d+ is done.", line)], "no line is garbled"


@story
async def test_who_switches_it_off_has_plain_lines_on_a_terminal(job: Job) -> None:
    with terminal(job.told) as seen:
        node = await job.node("--np", "1", "--no-live", within=seen.within)
        (worker,) = await job.world(1, 1)
        await worker.obeys("print", "hello")
        await worker.exits(0)
        assert await node.exits() == 0
        await seen.shows("hello", "the job has completed")
        assert not [line for line in seen.all_lines if "─" in line]
