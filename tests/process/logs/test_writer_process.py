"""What an agent has written by a process of its own: a pipe that nobody reads stands for a disk that stands still."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from elastic.errors import ConfigError
from launcher.logs import shared_file
from launcher.logs.file_names import LAUNCHER_LOG
from launcher.logs.log_dir import log_folder
from launcher.logs.shared_file import SharedLog
from launcher.logs.worker_log import WorkerStartLog
from launcher.logs.writer_client import LogWriterClient
from launcher.logs.writer_process import WriterProcess
from launcher.logs.writer_protocol import KEEP_BYTES, AppendShared, path_bytes
from launcher.text.sanitize import tail_lines
from tests.support import full_on_close
from tests.support.awaited_events import LIMIT_S

HEADER = "==== rank 0 ===="
PIECE = 1 << 16


class Desk:
    """A folder that is written to, and what was told of it."""

    def __init__(self, disk: LogWriterClient) -> None:
        self.disk = disk
        self.told: list[str] = []
        self._changed = asyncio.Event()
        disk.open(self._on_message)

    def _on_message(self, text: str, quietly: bool) -> None:
        self.told.append(text)
        self._changed.set()

    async def hears(self, text: str) -> str:
        async with asyncio.timeout(LIMIT_S):
            while not (found := [line for line in self.told if text in line]):
                self._changed.clear()
                await self._changed.wait()
            return found[-1]

    def start(self, name: str = "workerlog.0") -> WorkerStartLog:
        return WorkerStartLog(self.disk, self.disk.path / name, HEADER)


@asynccontextmanager
async def desk(folder: Path, limit_s: float = LIMIT_S) -> AsyncIterator[Desk]:
    process = WriterProcess(partial(log_folder, folder), folder, LAUNCHER_LOG)
    with LogWriterClient(process) as disk:
        made = Desk(disk)
        try:
            yield made
        finally:
            left = await disk.close(limit_s)
            if left:
                made.told.append(left)
    process.end()


def stop(child: int) -> None:
    """SIGSTOP; all its threads stand still from here on."""
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)


async def read_whole(path: Path) -> bytes:
    """Read a pipe until whoever writes has closed it."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    loop, data, more = asyncio.get_running_loop(), bytearray(), asyncio.Event()
    loop.add_reader(fd, more.set)
    try:
        while True:
            await more.wait()
            more.clear()
            with contextlib.suppress(BlockingIOError):
                if not (piece := os.read(fd, 1 << 20)):
                    return bytes(data)
                data += piece
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def test_what_is_said_is_in_the_files_in_its_order_when_the_folder_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with desk(tmp_path) as it:
            logs = [it.start(f"workerlog.{rank}") for rank in range(2)]
            for number in range(3000):
                logs[number % 2].write(b"%d\n" % number)
            logs[0].write(b"x" * 3 * PIECE)
            for log in logs:
                log.line("==== end ====")
                log.close()
            it.disk.put(AppendShared(path_bytes(it.disk.path / LAUNCHER_LOG), b"said\n"), LAUNCHER_LOG)
        assert it.told == []

    asyncio.run(main())
    even, odd = ((tmp_path / f"workerlog.{rank}").read_text().splitlines() for rank in range(2))
    assert odd == [HEADER, *map(str, range(1, 3000, 2)), "==== end ===="]
    assert even == [HEADER, *map(str, range(0, 3000, 2)), "x" * 3 * PIECE, "==== end ===="]
    assert (tmp_path / LAUNCHER_LOG).read_text() == "said\n"


def test_a_disk_that_stands_still_costs_what_does_not_fit_and_the_log_says_how_much_that_is(tmp_path: Path) -> None:
    async def main() -> None:
        os.mkfifo(tmp_path / "workerlog.0")
        async with desk(tmp_path) as it:
            log = it.start()
            while not it.disk.paused:  # As long as the disk may only be slow, the worker is to wait.
                log.write(b"y" * PIECE)
                await asyncio.sleep(0)
            went_on = asyncio.Event()
            it.disk.on_writable(went_on.set)
            async with asyncio.timeout(LIMIT_S):
                await went_on.wait()
            assert not it.disk.paused, "nobody waits for a disk that stands still"
            for _ in range(2 * KEEP_BYTES // PIECE):
                log.write(b"z" * PIECE)
            await it.hears("does not accept writes")
            log.line("last words")
            assert tail_lines(log.ending)[-1] == "last words", "the end is known without the disk"
            reading = asyncio.create_task(read_whole(tmp_path / "workerlog.0"))
            said = await it.hears("accepts writes again")
            log.close()
        text = (await reading).decode()
        assert len(text) < KEEP_BYTES
        missing = [
            int(line.split()[1]) for line in text.splitlines() if "bytes are missing here: the disk was stalled" in line
        ]
        assert text.count("y") + text.count("z") + sum(missing) >= 2 * KEEP_BYTES
        assert f"{sum(missing) / 1e6:.1f} MB of output were dropped from workerlog.0" in said
        assert it.disk.left_out_bytes == sum(missing)

    asyncio.run(main())


def test_one_that_says_much_leaves_room_to_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        os.mkfifo(tmp_path / "workerlog.0")
        async with desk(tmp_path) as it:
            much, little = it.start(), it.start("workerlog.1")
            while not it.told:
                if not it.disk.paused:
                    much.write(b"y" * PIECE)
                await asyncio.sleep(0.001)
            little.write(b"little\n")
            reading = asyncio.create_task(read_whole(tmp_path / "workerlog.0"))
        await reading
        assert "little\n" in (tmp_path / "workerlog.1").read_text()

    asyncio.run(main())


def test_the_end_does_not_wait_for_ever_and_says_what_is_lost(tmp_path: Path) -> None:
    async def main() -> int:
        os.mkfifo(tmp_path / "workerlog.0")
        async with desk(tmp_path, limit_s=0.2) as it:
            log = it.start()
            log.write(b"y" * 2 * PIECE)
            log.close()
        line = it.told[-1]
        assert re.search(r"does not accept writes: \d+ writes? may be lost; process", line)
        return int(line.rpartition("process ")[2].split()[0])

    pid = asyncio.run(main())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_process_that_was_stopped_goes_on_at_the_end_and_nothing_is_lost(tmp_path: Path) -> None:
    others = psutil.Process().children()

    async def main() -> None:
        async with desk(tmp_path) as it:
            (writer,) = set(psutil.Process().children()) - set(others)
            stop(writer.pid)
            it.start().write(b"the last word\n")
        assert it.told == []
        assert not psutil.pid_exists(writer.pid)

    asyncio.run(main())
    assert b"the last word" in (tmp_path / "workerlog.0").read_bytes()


def test_a_process_that_was_killed_costs_a_line_and_the_logs_go_on(tmp_path: Path) -> None:
    others = psutil.Process().children()

    async def main() -> None:
        async with desk(tmp_path) as it:
            log = it.start()
            log.write(b"before\n")
            (process,) = set(psutil.Process().children()) - set(others)
            process.kill()
            await it.hears("the log writer was killed")
            log.write(b"after\n")
            log.close()

    asyncio.run(main())
    assert (tmp_path / "workerlog.0").read_text().endswith(f"{HEADER}\nafter\n")


def killed(others: list[psutil.Process]) -> None:
    """Kill the process that writes; its end is not told yet."""
    (process,) = set(psutil.Process().children()) - set(others)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_what_a_process_was_not_sent_before_it_was_killed_is_written_without_it(tmp_path: Path) -> None:
    """It stands still, so that what does not fit on the way to it waits. One start ends there, one goes on."""
    others = psutil.Process().children()

    async def main() -> None:
        async with desk(tmp_path) as it:
            logs = [it.start(f"workerlog.{rank}") for rank in range(2)]
            (process,) = set(psutil.Process().children()) - set(others)
            process.suspend()
            for number in range(100):
                logs[number % 2].write(b"%d %s\n" % (number, b"x" * (PIECE - 100)))
            logs[0].line("==== end ====")
            logs[0].close()
            killed(others)
            await it.hears("the log writer was killed")
            logs[1].line("==== end ====")
            logs[1].close()

    asyncio.run(main())
    for rank in range(2):
        lines = (tmp_path / f"workerlog.{rank}").read_text().splitlines()
        assert lines[-1] == "==== end ===="
        numbers = [int(line.split()[0]) for line in lines if line.endswith("xxx")]
        assert numbers == list(range(numbers[0], 100, 2))
        assert numbers[0] < 50


def test_what_is_said_before_its_end_is_told_is_written(tmp_path: Path) -> None:
    others = psutil.Process().children()

    async def main() -> None:
        async with desk(tmp_path) as it:
            log = it.start()
            killed(others)
            log.write(b"after\n")
            late = it.start("workerlog.1")
            late.close()
            log.close()

    asyncio.run(main())
    assert (tmp_path / "workerlog.0").read_text().endswith(f"{HEADER}\nafter\n")
    assert (tmp_path / "workerlog.1").read_text() == f"{HEADER}\n"


def test_it_holds_nothing_of_the_process_that_started_it(tmp_path: Path) -> None:
    """Whoever waits for the end of a pipe would wait for it, too."""
    reader, writer = os.pipe()
    process = WriterProcess(partial(log_folder, tmp_path), tmp_path, LAUNCHER_LOG)
    with LogWriterClient(process):
        os.close(writer)
        assert os.read(reader, 1) == b""
    os.close(reader)
    process.end()


FULL = r"""
import resource, sys
from pathlib import Path
from launcher.logs.shared_file import SharedLog
log = SharedLog(Path(sys.argv[1]))
log.append(b"whole\n")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
for _ in range(2):
    try:
        log.append(b"a part\n")
    except OSError as error:
        print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.append(b"whole again\n")
"""


def test_a_line_that_a_full_disk_takes_a_part_of_is_told_and_does_not_tear_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / LAUNCHER_LOG
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
    )
    assert ran.stdout == "File too large\n" * 2
    assert path.read_text() == "whole\na pa\nwhole again\n"


def test_a_disk_that_says_at_the_end_that_it_has_no_room_costs_a_line_for_each_start_and_the_logs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "close", full_on_close.refuses("log."))

    async def main() -> list[str]:
        async with desk(tmp_path) as it:
            for text in (b"one\n", b"two\n"):
                log = it.start()
                log.write(text)
                log.close()
                it.disk.put(AppendShared(path_bytes(it.disk.path / "log.jsonl"), text), "log.jsonl")
        return it.told

    told = asyncio.run(main())
    lost = f"cannot write {tmp_path}/workerlog.0 ({full_on_close.WORDS}); its worker's output is not logged"
    assert told == [lost, f"cannot write {tmp_path}/log.jsonl ({full_on_close.WORDS}); it is not complete", lost]
    assert (tmp_path / "workerlog.0").read_text() == f"{HEADER}\none\n{HEADER}\ntwo\n"
    assert (tmp_path / "log.jsonl").read_text() == "one\ntwo\n"


def test_a_line_is_written_and_no_file_stays_open_when_a_disk_refuses_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file, "BYTES_MAX", 5)
    before, path = os.listdir("/proc/self/fd"), tmp_path / LAUNCHER_LOG
    log = SharedLog(path)
    log.append(b"the first\n")
    monkeypatch.setattr(os, "close", full_on_close.refuses("launcher."))
    with pytest.raises(OSError, match=full_on_close.WORDS):
        log.append(b"the next\n")
    assert path.read_text() == "the next\n"
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_used_is_an_error_with_its_mend(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / name
    process = WriterProcess(partial(log_folder, folder), folder, LAUNCHER_LOG)
    with pytest.raises(ConfigError, match="--log-dir"):
        LogWriterClient(process)
    process.end()


def test_a_story_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "story").mkdir()
    process = WriterProcess(partial(log_folder, tmp_path), tmp_path, "story")
    with pytest.raises(ConfigError, match="cannot write "):
        LogWriterClient(process)
    process.end()
