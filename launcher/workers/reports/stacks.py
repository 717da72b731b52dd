"""The current stack traces of a process of this node, for a user who asks for them.

A process that uses the elastic library, or that was started with preloaded modules, writes them itself when it gets a
signal: they also go to its log. Any other Python process can be inspected from outside by py-spy, if that is installed
on the node and the kernel permits it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from elastic.channel.messages import truncate_text
from elastic.core.text import process_name
from launcher.logs.worker_log import WorkerStartLog
from launcher.system.child_exit import wait_for_exit
from launcher.system.descriptors import closing
from launcher.system.processes import is_frozen
from launcher.wire.inspect_messages import WORDS_MAX, InspectRefusal, StackText, WorkerState
from launcher.workers.reports.states import TrackedProcess

LIMIT_S: Final = 2.0
"""How long a process may take to write its stack traces."""
QUIET_S: Final = 0.05
"""Stack traces that did not grow for this time are complete."""
PY_SPY_LIMIT_S: Final = 10.0
OUTPUT_BYTES_MAX: Final = 1 << 20
OWN_SIGNAL: Final = signal.SIGRTMAX
"""The signal for which a preloaded worker has a handler (`launcher.nursery.run_script`)."""


async def stacks(process: TrackedProcess) -> StackText | InspectRefusal:
    """Return the stack traces of a process, or the reason why they are unavailable."""
    name = process_name(process.spec.role, process.spec.rank)
    if process.state is WorkerState.EXITED or not process.pid or process.output is None:
        how = f" ({process.detail})" if process.detail else ""
        return InspectRefusal(f"{name} is not running now{how}: it has no stack traces")
    if is_frozen(process.pid):
        return InspectRefusal(
            f"{name} (pid {process.pid}) is suspended, by SIGSTOP or a debugger: it cannot write its stack traces"
        )
    log = process.output.log
    before = log.bytes_written
    if (process.connection is not None and process.connection.show_stacks()) or _ask_warm(process):
        if text := await _written(log, before):
            return StackText(text, f"written by {name} itself (pid {process.pid}); also in its log")
        return InspectRefusal(
            f"{name} (pid {process.pid}) was asked for its stack traces and wrote none within {LIMIT_S:g} s"
        )
    return await _from_outside(name, process.pid)


def _ask_warm(process: TrackedProcess) -> bool:
    """Have a worker that was started with preloaded modules write its stack traces; False if it has no handler."""
    with suppress(OSError), closing(os.pidfd_open(process.pid)) as pidfd:  # It may have just ended.
        if process.warm and _catches(process.pid, OWN_SIGNAL):
            signal.pidfd_send_signal(pidfd, OWN_SIGNAL)
            return True
    return False


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal: otherwise the signal would kill it."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")  # A name is cut after 15 bytes.
        for line in status.splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (number - 1) & 1)
    return False


async def _written(log: WorkerStartLog, before: int) -> str:
    """Return the stack traces that a process writes after its first `before` bytes."""
    size = before
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            while not stacks_in(_since(log, before)):
                await wait_quiet([(log, size)], asyncio.Event())
                size = log.bytes_written
    return stacks_in(_since(log, before))


async def wait_quiet(
    logs: Collection[tuple[WorkerStartLog, int]], woken: asyncio.Event, over: Callable[[], bool] = lambda: False
) -> None:
    """Wait until each log is longer than that many bytes, or it is `over`, and nothing has set `woken` for `QUIET_S`.

    The logs set it when they grow.
    """
    for log, _ in logs:
        log.listeners.append(woken.set)
    try:
        while True:
            woken.clear()
            enough = over() or all(log.bytes_written > size for log, size in logs)
            try:
                async with asyncio.timeout(QUIET_S if enough else None):
                    await woken.wait()
            except TimeoutError:
                return
    finally:
        for log, _ in logs:
            log.listeners.remove(woken.set)


def _since(log: WorkerStartLog, before: int) -> bytes:
    data = log.ending.data
    return data[max(len(data) - (log.bytes_written - before), 0) :]


async def _from_outside(name: str, pid: int) -> StackText | InspectRefusal:
    program = shutil.which(
        "py-spy", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    )
    if program is None:
        return InspectRefusal(
            f"{name} (pid {pid}) was started without preloading and does not use the elastic library, so it cannot "
            "be asked; run pip install py-spy on its node, and try again"
        )
    try:
        code, out, err = await _run([program, "dump", "--nonblocking", "--pid", str(pid)], PY_SPY_LIMIT_S)
    except TimeoutError:
        return InspectRefusal(f"{name} (pid {pid}) cannot be inspected: py-spy took longer than {PY_SPY_LIMIT_S:g} s")
    except OSError as error:
        return InspectRefusal(f"{name} (pid {pid}) cannot be inspected: py-spy does not start ({error.strerror})")
    if code or not out:
        why = truncate_text(" ".join(err.split()), WORDS_MAX // 2)
        return InspectRefusal(f"{name} (pid {pid}) cannot be inspected from outside; py-spy: {why or 'no message'}")
    return StackText(out.strip("\n"), f"seen from outside by py-spy (pid {pid})")


async def _run(argv: list[str], limit_s: float) -> tuple[int, str, str]:
    """Run a program without input; return its exit code, stdout and stderr. Raises `OSError`, including `TimeoutError`.

    asyncio would start a thread for it, and an agent has none.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)  # noqa: ASYNC220
        try:
            async with asyncio.timeout(limit_s):
                await wait_for_exit(process.pid)
        finally:
            process.kill()
            code = process.wait()  # It has ended, or was killed.
        out.seek(0)
        err.seek(0)
        return code, _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")


_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  (?:File ".*", line (?:\d+|\?\?\?) in .*|<[^>]+>|\.\.\.)$')


def _shown(line: str) -> str:
    """Return a line without control characters: a thread and a function may have any name."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in line)


def stacks_in(said: bytes) -> str:
    """Return the stack traces in a process's output, "" if there are none, without what other threads wrote between."""
    stack_lines: list[str] = []
    inside = False
    for line in said.decode(errors="replace").split("\n"):
        if _THREAD.match(line):
            if stack_lines:
                stack_lines.append("")
            stack_lines.append(_shown(line))
            inside = True
        elif inside and _FRAME.match(line):
            stack_lines.append(_shown(line))
    return "\n".join(stack_lines)
