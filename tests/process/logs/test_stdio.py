"""A console that is a file: who writes it, in which order, what a disk costs that stands still, and how it ends."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launcher.logs.pipe_to_file import PipeToFile
from launcher.logs.writer_protocol import KEEP_BYTES
from tests.support import full_on_close
from tests.support.agent_process import DISK_WARNING
from tests.support.awaited_events import LIMIT_S
from tests.support.job_harness import Job, story

BEGIN = """
import os, psutil, signal, sys
from functools import partial
from pathlib import Path
from launcher.logs.log_dir import log_folder
from launcher.logs.stdio import StdioRedirect
from launcher.logs.writer_client import LogWriterClient
folder = Path("log").absolute()
outputs = StdioRedirect(partial(log_folder, folder), folder)
"""
LINES = 1000
SPEAKER = f"""{BEGIN}
with outputs, LogWriterClient(outputs.process):
    out, err = outputs.console(1), outputs.console(2)
    for number in range({LINES}):
        out.write(b"out %d\\n" % number)
        err.write_line(f"err {{number}}")
        os.write(2, b"child %d\\n" % number)
        print("print", number, file=sys.stderr)
sys.exit(7)
"""
WHO = ("out", "err", "child", "print")
KILLED = f"""{BEGIN}
with outputs, LogWriterClient(outputs.process):
    (writer,) = psutil.Process().children()
    writer.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    %s
    outputs.write_line("the end")
sys.exit(7)
"""
MUCH = "import sys; [print(n, 'x' * 999) for n in range(20_000)]"
"""More than the agent and the process that writes keep together, were nobody to wait for the disk."""


def shell(line: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in which "$@" is python with this code."""
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", sys.executable, "-c", code],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("redirection", ["> console 2>&1", ">> console 2>&1", ">> console 2>> console"])
def test_a_file_has_all_in_its_order_between_what_others_write_before_and_after(
    tmp_path: Path, redirection: str
) -> None:
    shell(f'{{ echo before; "$@"; echo code $?; }} {redirection}', SPEAKER, tmp_path)
    lines = (tmp_path / "console").read_text().splitlines()
    assert lines == ["before", *(f"{who} {number}" for number in range(LINES) for who in WHO), "code 7"]


def test_two_files_have_their_own(tmp_path: Path) -> None:
    assert shell('exec "$@" > out 2> err', SPEAKER, tmp_path).returncode == 7
    assert (tmp_path / "out").read_text().splitlines() == [f"out {number}" for number in range(LINES)]
    others = [f"{who} {number}" for number in range(LINES) for who in WHO[1:]]
    assert (tmp_path / "err").read_text().splitlines() == others


def test_a_file_whose_disk_says_at_the_end_that_it_has_no_room_costs_a_line_and_not_the_exit_code(
    tmp_path: Path,
) -> None:
    refuse = "from tests.support import full_on_close\nos.close = full_on_close.refuses('/console')\n"
    ran = shell('exec "$@" > console', SPEAKER.replace(BEGIN, BEGIN + refuse), tmp_path)
    assert ran.returncode == 7
    said = f"cannot write the file that is stdout ({full_on_close.WORDS}); a part of it may be missing"
    assert ran.stderr.splitlines()[-1] == f"elastic-launch: {said}"


def test_a_pipe_and_a_device_stay_as_they_are(tmp_path: Path) -> None:
    code = f"""{BEGIN}
before = [os.fstat(fd) for fd in (1, 2)]
with outputs, LogWriterClient(outputs.process):
    outputs.console(1).write_line(str(before == [os.fstat(fd) for fd in (1, 2)]))
"""
    assert shell('exec "$@" 2> /dev/null', code, tmp_path).stdout == "True\n"


@pytest.mark.parametrize("first", ["outputs.console(2).write_line", "outputs.write_line"])
def test_when_the_process_that_writes_is_killed_the_file_is_written_directly(tmp_path: Path, first: str) -> None:
    assert shell('exec "$@" 2> console', KILLED % f"{first}('the first')", tmp_path).returncode == 7
    *killed, one, two = (tmp_path / "console").read_text().splitlines()
    assert (one.removeprefix("elastic-launch: "), two) == ("the first", "elastic-launch: the end")
    assert "the process that writes this file was killed" in "".join(killed) or first == "outputs.write_line"


def test_what_was_said_before_a_kill_is_in_the_file(tmp_path: Path) -> None:
    code = f"""{BEGIN}
with outputs, LogWriterClient(outputs.process):
    print(*(child.pid for child in psutil.Process().children()), flush=True)
    outputs.console(2).write_line("precious")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = shell('exec "$@" 2> console', code, tmp_path)
    with_end = select.poll()
    try:
        pidfd = os.pidfd_open(int(ended.stdout))
    except ProcessLookupError:
        pass
    else:
        with_end.register(pidfd, select.POLLIN)
        assert with_end.poll(LIMIT_S * 1000)
        os.close(pidfd)
    assert (tmp_path / "console").read_text() == "precious\n"


def test_a_log_folder_that_stands_still_does_not_hold_up_the_console(tmp_path: Path) -> None:
    """A pipe that nobody reads stands for it."""
    code = f"""{BEGIN}
from launcher.logs.worker_log import WorkerStartLog
folder.mkdir()
os.mkfifo(folder / "workerlog.0")
with outputs, LogWriterClient(outputs.process) as disk:
    WorkerStartLog(disk, folder / "workerlog.0", "header").write(b"y" * (1 << 17))
    outputs.console(2).write_line("it goes on")
print(outputs.process.pid, *(child.pid for child in psutil.Process().children()))
"""
    ran = shell('exec "$@" 2> console', code, tmp_path)
    writer, *left = map(int, ran.stdout.split())
    assert left == [writer], "it waits for the folder"
    os.kill(writer, signal.SIGKILL)
    assert (tmp_path / "console").read_text() == "it goes on\n"


class Carried:
    """A flow into a descriptor, fed by the test."""

    def __init__(self, file: int) -> None:
        reader, self.pipe = os.pipe()
        self.done = threading.Semaphore(0)
        flow = PipeToFile(reader, file, lambda count: self.done.release())
        self._thread = threading.Thread(target=flow.run, daemon=True)
        self._thread.start()
        self._reader = reader

    def say(self, data: bytes) -> None:
        assert os.write(self.pipe, data) == len(data)

    def end(self) -> None:
        os.close(self.pipe)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        os.close(self._reader)


def test_a_disk_that_stands_still_costs_what_does_not_fit_and_the_file_says_where_and_how_much() -> None:
    """A pipe that nobody reads stands for it."""
    reader, writer = os.pipe()
    carried = Carried(writer)
    lines = [b"%d %s\n" % (number, b"x" * 999) for number in range(2 * KEEP_BYTES // 1000)]
    for line in lines:
        carried.say(line)
    text = bytearray()

    def read() -> None:
        while piece := os.read(reader, 1 << 20):
            text.extend(piece)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    carried.end()
    os.close(writer)
    reading.join(LIMIT_S)
    os.close(reader)
    (note,) = re.finditer(rb"\n\[elastic-launch\] the console was blocked: (\d+) bytes are only in the logs\n", text)
    said = b"".join(lines)
    assert said.startswith(text[: note.start()])
    assert said.endswith(text[note.end() :])
    assert len(said) - int(note[1]) == len(text) - len(note[0]) <= KEEP_BYTES + (1 << 18)


def test_what_a_full_disk_refuses_is_told_in_its_place_once_there_is_room(tmp_path: Path) -> None:
    file = os.open("/dev/full", os.O_WRONLY)
    carried = Carried(file)
    carried.say(b"lost\n")
    assert carried.done.acquire(timeout=LIMIT_S)
    room = os.open(tmp_path / "console", os.O_WRONLY | os.O_CREAT)
    os.dup2(room, file)
    carried.say(b"kept\n")
    carried.end()
    note = "\n[elastic-launch] the console was blocked: 5 bytes are only in the logs\n"
    assert (tmp_path / "console").read_text() == f"{note}kept\n"
    os.close(room)
    os.close(file)


@story
async def test_a_file_has_all_that_rank_0_says_however_fast_and_what_the_agent_says(job: Job) -> None:
    into = ("/bin/sh", "-c", 'exec "$@" > console 2>&1', "sh")
    node = await job.node("--np", "1", within=into)
    (worker,) = await job.world(1, 1)
    await worker.obeys("run", MUCH)
    await worker.exits(0)
    assert await node.exits() == 0
    lines = (node.folder / "console").read_text().splitlines()
    assert [line for line in lines if line.endswith("xxx")] == [f"{number} {'x' * 999}" for number in range(20_000)]
    ours = [line for line in lines if line.startswith("[elastic-launch ") and not line.endswith(DISK_WARNING)]
    assert "joined the job" in ours[0]
    assert lines[-1] == ours[-1]
    assert "the job has completed" in ours[-1]
