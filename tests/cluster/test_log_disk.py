"""A disk that stands still, for logs or the console, costs what does not fit into memory: no lease, step or exit."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import pytest

from elastic.store.embedded import find_etcd
from tests.cluster import disks
from tests.support.awaited_events import LIMIT_S
from tests.support.etcd_servers import one_server
from tests.support.job_harness import QUICK_TTL_S, Job, Stage

REASON = disks.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "a disk freezes"),
]

LINE = "x" * 999
LINES = 40_000
"""More than what is kept for a disk that stands still: 40 MB."""
STALLED = r"\[elastic-launch\] the console was blocked: (\d+) bytes are only in the logs"
MUCH = f"import sys; [print(n, {LINE!r}) for n in range({LINES})]"


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[[Callable[[Job, disks.Disk], Awaitable[None]]], None]]:
    """Plays a story with an etcd, and with a disk that can stand still."""
    server = one_server(find_etcd(), tmp_path / "etcd").start()
    try:
        with disks.Disk(tmp_path) as disk:
            yield lambda story: Stage(server, tmp_path).play(lambda job: story(job, disk))
    finally:
        server.kill()


async def until_written(file: Path, pattern: str) -> None:
    """Wait until a file has a line that matches."""
    tail = await asyncio.create_subprocess_exec(
        *("tail", "--lines=+1", "--follow", str(file)), stdout=asyncio.subprocess.PIPE
    )
    assert tail.stdout is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            while not re.match(pattern, (await tail.stdout.readline()).decode()):
                pass
    finally:
        tail.kill()
        await tail.wait()


Play = Callable[[Callable[[Job, disks.Disk], Awaitable[None]]], None]


def test_a_job_goes_through_a_loss_and_a_failure_while_the_disk_stands_still_and_its_log_says_what_is_missing(
    play: Play,
) -> None:
    """Its leases last 2 s: the agent acts on everything meanwhile, and the end of a log is known without the disk."""

    async def story(job: Job, disk: disks.Disk) -> None:
        log = disk.path / "log"
        kept = await job.node("--np", "2", "--log-dir", str(log), ttl_s=QUICK_TTL_S)
        await kept.says("joined")
        lost = await job.node("--np", "2", ttl_s=QUICK_TTL_S)
        first, _ = await job.world(1, 2)
        await first.obeys("print", "before")
        await kept.shows("^before$")
        with disk.frozen():
            await first.obeys("run", MUCH)  # A console that takes less than that gets less.
            await kept.says(
                r"does not accept writes .* up to \d+\.\d MB of output wait for the disk, and more is dropped"
            )
            lost.signal(SIGKILL)
            (alone,) = await job.world(2, 1)
            await alone.obeys("print", "the last words")
            await alone.exits(3)
            await kept.says("The last lines of rank 0's log")
            await kept.says("^    the last words$")
            (again,) = await job.world(3, 1)
            await again.obeys("print", "again")
        await kept.says(r"accepts writes again; \d+\.\d MB of output were dropped from workerlog\.0")
        await again.exits(0)
        assert await kept.exits() == 0
        assert not [line for line in kept.lines if "lease is lost" in line]
        lines = (log / "workerlog.0").read_text().splitlines()
        numbers = [int(found[1]) for line in lines if (found := re.fullmatch(rf"(\d+) {LINE}", line))]
        assert numbers == sorted(numbers)
        gaps = [re.match(r"==== (\d+) bytes are missing here: the disk was stalled ====", line) for line in lines]
        missing = sum(int(gap[1]) for gap in gaps if gap)
        whole = sum(len(f"{number} {LINE}\n") for number in range(LINES))
        there = sum(len(line) for line in lines if "xx" in line) + len(numbers)
        assert missing > whole // 2
        assert abs(missing + there - whole) < 1000
        order = [
            next(at for at, line in enumerate(lines) if line.startswith(text))
            for text in ("before", "0 x", "==== stopped because", "the last words", "again")
        ]
        assert order == sorted(order)
        assert lines[-1] == "==== rank 0 gen 3 ended: exit 0 ===="
        assert "accepts writes again" in (log / "launcher.log").read_text()

    play(story)


def test_an_agent_ends_while_the_disk_stands_still_and_says_that_the_end_of_its_logs_is_lost(play: Play) -> None:
    async def story(job: Job, disk: disks.Disk) -> None:
        node = await job.node("--np", "1", "--log-dir", str(disk.path / "log"))
        (worker,) = await job.world(1, 1)
        with disk.frozen():
            await worker.exits(0)
            await node.says("the job has completed")
            await node.says(r"does not accept writes: \d+ writes? may be lost")
            assert await node.exits() == 0
        await node.leaves_nothing()
        assert "the job has completed" in (disk.path / "log" / "launcher.log").read_text()

    play(story)


def test_an_agent_that_is_killed_while_the_disk_stands_still_loses_nothing_that_it_had_said_before(play: Play) -> None:
    async def story(job: Job, disk: disks.Disk) -> None:
        node = await job.node("--np", "1", "--log-dir", str(disk.path / "log"))
        (worker,) = await job.world(1, 1)
        with disk.frozen():
            await worker.obeys("print", "precious")
            await node.shows("precious")
            node.signal(SIGKILL)
            await node.exits()
            await worker.ends()
        await node.leaves_nothing()
        assert "precious\n" in (disk.path / "log" / "workerlog.0").read_text()

    play(story)


def into(file: Path) -> tuple[str, ...]:
    """Runs a command whose console is a file, as a shell does it."""
    return ("/bin/sh", "-c", f'exec "$@" > {file} 2>&1', "sh")


def test_a_console_on_a_disk_that_stands_still_stops_nobody_and_says_what_is_missing(play: Play) -> None:
    """Its lease of 2 s is refreshed meanwhile: it sees that the other one ends, goes on alone, and starts again."""

    async def story(job: Job, disk: disks.Disk) -> None:
        out = disk.path / "out"
        by_lease = ("--np", "2", "--silence-timeout", "0")
        kept = await job.node(*by_lease, "--console", "local0", ttl_s=QUICK_TTL_S, within=into(out))
        lost = await job.node(*by_lease, ttl_s=QUICK_TTL_S)
        world = await job.world(1, 2)
        (first,) = (worker for worker in world if worker.node != lost.id)
        await first.obeys("print", "before")
        with disk.frozen():
            await first.obeys("run", MUCH)
            lost.signal(SIGSTOP)
            (alone,) = await job.world(2, 1)
            await alone.exits(3)
            (again,) = await job.world(3, 1)
        await until_written(out, STALLED)  # Until the disk accepts writes again, new output is left out, too.
        await again.obeys("print", "after")
        await again.exits(0)
        assert await kept.exits() == 0
        assert "lease is lost" not in kept.text("launcher.log")
        lines = [re.sub(r"^\[\S+\] rank \d: ", "", line) for line in out.read_text().splitlines()]
        numbers = [int(found[1]) for line in lines if (found := re.fullmatch(rf"(\d+) {LINE}", line))]
        assert numbers == list(range(len(numbers)))
        (missing,) = (found for line in lines if (found := re.fullmatch(STALLED, line)))
        whole = sum(len(f"{number} {LINE}\n") for number in range(LINES))
        assert whole // 2 < int(missing[1]) < whole
        order = [lines.index(text) for text in ("before", f"0 {LINE}", missing[0], "after")]
        assert order == sorted(order)
        assert [line for line in lines if "the job has completed" in line]
        assert kept.text(f"workerlog.{first.rank}").count(LINE) == LINES

    play(story)


def test_an_agent_ends_while_the_disk_of_its_console_stands_still_and_the_file_has_all_once_it_goes_on(
    play: Play,
) -> None:
    async def story(job: Job, disk: disks.Disk) -> None:
        out = disk.path / "out"
        node = await job.node("--np", "1", within=into(out))
        (worker,) = await job.world(1, 1)
        with disk.frozen():
            await worker.obeys("print", "precious")
            await worker.exits(0)
            assert await node.exits() == 0
        await node.leaves_nothing()
        lines = out.read_text().splitlines()
        assert "precious" in lines
        assert "the job has completed" in lines[-1]

    play(story)


def test_a_folder_that_does_not_answer_at_the_start_is_one_line_and_exit_code_2(play: Play) -> None:
    async def story(job: Job, disk: disks.Disk) -> None:
        with disk.frozen():
            node = await job.node("--np", "1", "--log-dir", str(disk.path / "log"))
            assert await node.exits() == 2
        (line,) = node.lines
        assert re.search(r"--log-dir \S+ has not responded for 10 s .*; repair it, or choose another directory", line)

    play(story)
