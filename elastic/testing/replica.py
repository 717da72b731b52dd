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
from types import FrameType, ModuleType
from typing import Any, NoReturn

import msgspec

from elastic._disk.replace import replace_file
from elastic.testing.environment import FILES, SOCKET, TASK

PACKET_MAX = 1 << 12


STACKS = signal.SIGRTMAX - 3
"""Writes the stacks of all threads into the replica's file, then ends it. Few programs use these numbers."""
FAIL = signal.SIGRTMAX - 4
"""Lets the main thread raise `Injected`."""

GO = b"go"
RAISE = b"raise"


class ReplicaTask(msgspec.Struct, frozen=True):
    """What to run: the function by its module and name, and where the module's file is."""

    module: str
    name: str
    file: str
    path: list[str]
    argv: list[str]
    arguments: str


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
    """The failure that the schedule asks for."""


_sockets: dict[int, socket.socket] = {}
"""The end of this process, by its pid: what it forks has another."""


def reached(what: int | str) -> None:
    """Say that this replica has finished a step, or has come to a place with a name.

    When the schedule ends the world there, every replica of the world waits for the others; so the place is exact. In a
    planned stop it returns once all are asked to stop. On a loss or a failure it does not return, except that it raises
    `Injected` in the replica that is to fail. Every replica calls it, from its main thread. Outside a run it does
    nothing.
    """
    path = os.environ.get(SOCKET)
    if not path:
        return
    end = _sockets.get(os.getpid())
    if end is None:
        end = _sockets[os.getpid()] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(path)
    end.send(msgspec.json.encode(MarkReached(int(os.environ[FILES].rpartition(".")[2]), what)))
    answer = end.recv(PACKET_MAX)
    if answer == RAISE:
        raise Injected(f"elastic.testing: the schedule lets this replica fail at {what!r}")
    if answer != GO:  # The run is gone, and this process is being killed.
        signal.pause()


def record(value: Any) -> None:
    """Keep a value of this replica for the test: numbers, text, None, lists and dicts of them.

    It is on its file when the call returns, also if the replica is killed next. The result has all of them, in order.
    """
    files = os.environ.get(FILES)
    if files:
        line = json.dumps(value).encode() + b"\n"
        handle = os.open(f"{files}.records", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def main() -> int:
    """Run the function that the environment names; the exit code."""
    files = os.environ[FILES]
    stacks = open(f"{files}.stacks", "w")  # noqa: SIM115  # Open as long as the process.
    signal.signal(STACKS, signal.SIG_DFL)
    faulthandler.register(STACKS, file=stacks, all_threads=True, chain=True)
    faulthandler.enable()
    signal.signal(FAIL, _fail)
    try:
        value = _call(Path(os.environ[TASK]))
        _write(value, f"{files}.value")
    except SystemExit as error:
        return _code(error)
    except BaseException as error:  # noqa: BLE001  # It is told with its traceback, and ends the process.
        at_s = time.monotonic()
        traceback.print_exc()
        line = traceback.format_exception_only(error)[-1].strip()
        Path(f"{files}.failed").write_bytes(msgspec.json.encode(ReplicaFailed(line, at_s, isinstance(error, Injected))))
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
    found: Any = _module(task)
    for name in task.name.split("."):
        found = getattr(found, name)
    args, kwargs = pickle.loads(Path(task.arguments).read_bytes())
    return found(*args, **kwargs)


def _reseed() -> None:
    """Give python and numpy numbers of their own, as in a new process. Torch starts with the same ones everywhere."""
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _module(task: ReplicaTask) -> ModuleType:
    """The function's module, by its name, or by its file where the name leads elsewhere or nowhere."""
    name = "__mp_main__" if task.module == "__main__" else task.module
    if task.module != "__main__":
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name + ".").startswith(error.name + "."):
                raise
        else:
            if not task.file or os.path.samefile(module.__file__ or os.devnull, task.file):
                return module
    spec = importlib.util.spec_from_file_location(name, task.file)
    if spec is None or spec.loader is None:
        raise ImportError(f"the module of the function, {task.module}, cannot be loaded from {task.file!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if task.module == "__main__":
        sys.modules["__main__"] = module  # What was pickled names its classes there.
        module.__spec__ = None  # A process that this one spawns then finds it by its file, as that of any script.
    spec.loader.exec_module(module)
    return module


def _write(value: Any, path: str) -> None:
    """Write the return value: as JSON if it comes back the same from it, as tensors otherwise."""
    if value is None:
        return
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = ""
    if text and _same(json.loads(text), value):
        replace_file(Path(f"{path}.json"), text.encode())  # Killed before its end, the replica has returned nothing.
        return
    import torch

    torch.save(value, f"{path}.pt")
    unsafe = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(f"{path}.pt"))
    if unsafe:
        raise TypeError(f"the function returned {', '.join(unsafe)}; return tensors, numbers, text, lists and dicts")


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
