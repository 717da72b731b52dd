"""One replica of a run, in its own process: it loads the function, calls it, and writes down what came of it.

Also what the function itself may call: `reached` and `record`. Outside a run both do nothing.
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
"""Writes the stacks of all threads into the replica's file, then ends it. Few programs use these numbers."""
FAIL = signal.SIGRTMAX - 4
"""Lets the main thread raise `Injected`."""

GO = b"go"


class ReplicaTask(msgspec.Struct, frozen=True):
    """What to run, and where the file of the function's module is."""

    module: str
    file: str
    path: list[str]
    argv: list[str]
    call: bytes
    """Pickled: the function, which is no more than its name there, args and kwargs."""


class MarkReached(msgspec.Struct, frozen=True):
    """The function of replica `number` has come to `what`."""

    number: int
    what: int | str


class ReplicaFailed(msgspec.Struct, frozen=True):
    """The function raised, at `at_s` of `CLOCK_MONOTONIC`; `line` is the last line of its traceback."""

    line: str
    at_s: float
    injected: bool


class Injected(Exception):
    """The failure that the schedule asks for, raised in the replica that is to fail."""


def reached(what: int | str) -> None:
    """Report that this replica has finished a step, or has come to a place with a name.

    If the schedule ends the world there, every replica of the world waits for the others, so that the place is exact.
    In a planned stop it returns once all replicas are asked to stop. On a loss or a failure it does not return. Call it
    in every replica, from the main thread. Outside a run it does nothing.

    Args:
        what: The number of the finished step, or the word that the schedule has as `at`.

    Raises:
        Injected: The schedule lets this replica fail here.
    """
    files = os.environ.get(FILES)
    if not files:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(str(Path(files).parent / SOCKET))
        try:  # The answer, or the signal to fail, may come as soon as this is sent.
            end.send(msgspec.json.encode(MarkReached(int(files.rpartition(".")[2]), what)))
            if end.recv(PACKET_MAX) != GO:  # The run is gone, and this process is being killed.
                signal.pause()
        except Injected:
            raise Injected(f"elastic.testing: the schedule lets this replica fail at {what!r}") from None


def record(value: Any) -> None:
    """Keep a value of this replica for the test, which finds it in `Replica.records`.

    The value is written when the call returns, so it survives a kill of the replica. Outside a run it does nothing.

    Args:
        value: What `json.dumps` takes: numbers, text, None, and lists and dicts of them.

    Raises:
        TypeError: The value cannot be written as JSON.
    """
    files = os.environ.get(FILES)
    if files:
        with open(f"{files}.records", "ab", buffering=0) as file:
            file.write(json.dumps(value).encode() + b"\n")


def main() -> int:
    """Run the function that the environment names; the exit code."""
    files = os.environ[FILES]
    stacks = open(f"{files}.stacks", "w")  # noqa: SIM115  # Open as long as the process.
    signal.signal(STACKS, signal.SIG_DFL)
    faulthandler.register(STACKS, file=stacks, all_threads=True, chain=True)
    faulthandler.enable()
    signal.signal(FAIL, _fail)
    try:
        value = _call(Path(files).parent / TASK)
        _write(value, Path(f"{files}.value"))
    except SystemExit as error:
        return _code(error)
    except BaseException as error:  # noqa: BLE001  # It is told with its traceback, and ends the process.
        at_s = time.monotonic()
        traceback.print_exc()
        line = traceback.format_exception_only(error)[-1].strip()
        failed = ReplicaFailed(line, at_s, isinstance(error, Injected))
        replace_file(Path(f"{files}.failed"), msgspec.json.encode(failed))
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End this process as `multiprocessing` ends its own: threads are awaited and exit functions called.

    What python does after that, taking apart all modules, is left out: it takes 0.2 s and nobody needs it.
    """
    with contextlib.suppress(SystemExit):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # The function may have closed them.
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _code(error: SystemExit) -> int:
    """The exit code that python gives for it."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _fail(_number: int, _frame: FrameType | None) -> None:
    raise Injected("elastic.testing: the schedule lets this replica fail here")


def _call(path: Path) -> Any:
    task = msgspec.json.decode(path.read_bytes(), type=ReplicaTask)
    sys.path[:] = task.path
    sys.argv[:] = task.argv
    _reseed()
    _import_module(task)
    function, args, kwargs = pickle.loads(task.call)
    return function(*args, **kwargs)


def _reseed() -> None:
    """Give python and numpy numbers of their own, as in a new process. Torch starts with the same ones everywhere."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _import_module(task: ReplicaTask) -> None:
    """Import the function's module, by its name, or by its file where the name leads elsewhere or nowhere."""
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
        raise ImportError(f"the module of the function, {task.module}, cannot be loaded from {task.file!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if task.module == "__main__":
        sys.modules["__main__"] = module  # What was pickled names its classes there.
        module.__spec__ = None  # A process that this one spawns then finds it by its file, as that of any script.
    spec.loader.exec_module(module)


def _write(value: Any, path: Path) -> None:
    """Write the return value. Killed before its end, the replica has returned nothing."""
    if value is None:
        return
    import torch

    with replacing(path) as new:
        torch.save(value, new)
        if unsafe := sorted(torch.serialization.get_unsafe_globals_in_checkpoint(new)):
            raise TypeError(
                f"the function returned {', '.join(unsafe)}; return tensors, numbers, text, lists and dicts"
            )
