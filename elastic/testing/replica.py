"""One replica of a run, in its own process: it loads the function, calls it, and writes its result to files.

`reached` and `record` are for the function itself. Outside a run both do nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from elastic._disk.replace import replace_file, replacing
from elastic.testing.environment import FILES, SOCKET, TASK
from elastic.testing.fork_protocol import PACKET_MAX

STACKS = signal.SIGRTMAX - 3
"""The signal that writes all stack traces to the replica's file and ends it. Few programs use these signals."""
FAIL = signal.SIGRTMAX - 4
"""The signal that makes the main thread raise `Injected`."""

GO = b"go"


class ReplicaTask(msgspec.Struct, frozen=True):
    """The function to run, and the file of its module."""

    module: str
    file: str
    path: list[str]
    argv: list[str]
    call: bytes
    """Pickled: the function, by its name, args and kwargs."""


class MarkReached(msgspec.Struct, frozen=True):
    """The function of replica `number` has called `reached(what)`."""

    number: int
    what: int | str


class ReplicaFailed(msgspec.Struct, frozen=True):
    """The function raised, at `at_s` of `CLOCK_MONOTONIC`; `line` is the last line of its traceback."""

    line: str
    at_s: float
    injected: bool


class Injected(Exception):
    """The failure of a schedule, raised in the replica that it names."""


def reached(what: int | str) -> None:
    """Report that this replica has finished a step, or has reached a named point.

    If the schedule ends the world there, every replica of the world waits for the others, so that the world ends
    exactly there. Before a planned stop it returns once all replicas have the request to stop. Before a node failure or
    a failure it does not return. Call it in every replica, from the main thread. Outside a run it does nothing.

    Args:
        what: The number of the finished step, or the string that the schedule has as `at`.

    Raises:
        Injected: The schedule makes this replica fail here.
    """
    files = os.environ.get(FILES)
    if not files:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(str(Path(files).parent / SOCKET))
        try:  # The reply, or the signal to fail, may arrive as soon as this is sent.
            end.send(msgspec.json.encode(MarkReached(int(files.rpartition(".")[2]), what)))
            if end.recv(PACKET_MAX) != GO:  # The run has exited, and this process is being killed.
                signal.pause()
        except Injected:
            raise Injected(f"elastic.testing: the schedule makes this replica fail at {what!r}") from None


def record(value: Any) -> None:
    """Record a value of this replica for the test, in `Replica.records`.

    The value is written when the call returns, so it survives SIGKILL. Outside a run it does nothing.

    Args:
        value: Anything that `json.dumps` accepts: numbers, strings, None, and lists and dicts of them.

    Raises:
        TypeError: The value cannot be written as JSON.
    """
    files = os.environ.get(FILES)
    if files:
        with open(f"{files}.records", "ab", buffering=0) as file:
            file.write(json.dumps(value).encode() + b"\n")


def main() -> int:
    """Run the function that the environment names, and return the exit code."""
    files = os.environ[FILES]
    stacks = open(f"{files}.stacks", "w")  # noqa: SIM115  # Open until the process exits.
    signal.signal(STACKS, signal.SIG_DFL)
    faulthandler.register(STACKS, file=stacks, all_threads=True, chain=True)
    faulthandler.enable()
    signal.signal(FAIL, _fail)
    try:
        value = _call(Path(files).parent / TASK)
        _write(value, Path(f"{files}.value"))
    except SystemExit as error:
        return _code(error)
    except BaseException as error:  # noqa: BLE001  # It is recorded with its traceback, and ends the process.
        at_s = time.monotonic()
        traceback.print_exc()
        line = traceback.format_exception_only(error)[-1].strip()
        failed = ReplicaFailed(line, at_s, isinstance(error, Injected))
        replace_file(Path(f"{files}.failed"), msgspec.json.encode(failed))
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """Exit like a process of `multiprocessing`: wait for threads, and call the exit functions.

    It skips the rest of Python's finalization, the teardown of all modules, which takes 0.2 s.
    """
    with contextlib.suppress(SystemExit):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # The function may have closed them.
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _code(error: SystemExit) -> int:
    """Return the exit code that Python uses for it."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _fail(_number: int, _frame: FrameType | None) -> None:
    raise Injected("elastic.testing: the schedule makes this replica fail here")


def _call(path: Path) -> Any:
    task = msgspec.json.decode(path.read_bytes(), type=ReplicaTask)
    sys.path[:] = task.path
    sys.argv[:] = task.argv
    _reseed()
    _import_module(task)
    function, args, kwargs = pickle.loads(task.call)
    return function(*args, **kwargs)


def _reseed() -> None:
    """Seed Python and NumPy randomly, as in a new process. Torch has the same initial seed in every process."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _import_module(task: ReplicaTask) -> None:
    """Import the function's module by its name, or by its file if the name does not lead to that file."""
    name = "__mp_main__" if task.module == "__main__" else task.module
    if task.module != "__main__":
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                raise
        else:
            if not task.file or os.path.samefile(module.__file__ or os.devnull, task.file):
                return
    spec = importlib.util.spec_from_file_location(name, task.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the module of the function, {task.module}, from {task.file!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if task.module == "__main__":
        sys.modules["__main__"] = module  # The pickle refers to classes there.
        module.__spec__ = None  # A process that this one spawns then finds it by its file, like any script.
    spec.loader.exec_module(module)


def _write(value: Any, path: Path) -> None:
    """Write the return value atomically: a replica that is killed meanwhile has returned nothing."""
    if value is None:
        return
    import torch

    with replacing(path) as new:
        torch.save(value, new)
        if unsafe := sorted(torch.serialization.get_unsafe_globals_in_checkpoint(new)):
            raise TypeError(
                f"the function returned {', '.join(unsafe)}; return tensors, numbers, strings, lists and dicts"
            )
