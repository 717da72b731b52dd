"""Processes that need no import of torch: each is forked from one that has it, and is otherwise what python makes.

A story of four scripts would spend nearly all of its time on four imports. The sentence that a plain `python` does the
same is proven where the command lines themselves are what a story is about.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
LOADED = ("torch", "torch.distributed", "torch._dynamo", "torch.distributed.fsdp")
"""What a forked process finds imported: nothing of ours, and nothing that starts a thread. DDP, FSDP2 and an optimizer
load the last two, for two seconds of processor time in each process that has not got them."""
LIMIT_S = 100.0
"""How long a process that was killed may take to be gone, on a slow machine."""
ORDER_BYTES_MAX = 1 << 17
"""Of one order: the words and the whole environment of a process."""


class Forked:
    """A process that was forked: what `subprocess.Popen` offers, as far as stories use it."""

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], *, cwd: Path = ROOT, errors: int | None = None
    ) -> None:
        """`words` are a module's name or a script (.py), and its arguments.

        stderr goes to the file `errors`, or where stdout goes.
        """
        control, _ = _forker()
        stdin, stdin_end = os.pipe()
        stdout_end, stdout = os.pipe()
        self._report, report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = json.dumps({"words": list(words), "environ": dict(environ), "cwd": str(cwd)}).encode()
        with report:
            fds = (stdin, stdout, stdout if errors is None else errors, report.fileno())
            socket.send_fds(control, [order], fds)
        os.close(stdin)
        os.close(stdout)
        self.stdin = os.fdopen(stdin_end, "w")
        self.stdout = os.fdopen(stdout_end)
        self.pid = int(self._report.recv(32))
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, limit_s: float) -> int:
        """Wait for the exit code."""
        with self._lock:
            if self.returncode is None:
                self._report.settimeout(limit_s)
                try:
                    self.returncode = int(self._report.recv(32))
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(str(self.pid), limit_s) from None
                self._report.close()
            return self.returncode

    def output(self, limit_s: float) -> str:
        """All that it writes to stdout to its end, after which it may run for as long as the limit."""
        self.stdin.close()
        with self.stdout:
            text = without_gloo(self.stdout.read())
        self.wait(limit_s)
        return text

    def kill(self) -> None:
        """End it, however it is, and let go of it."""
        self.send_signal(signal.SIGKILL)
        self.wait(LIMIT_S)
        self.stdin.close()
        self.stdout.close()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended since.
                os.kill(self.pid, number)


def without_gloo(text: str) -> str:
    """What was written to stdout, without the lines that gloo of an older torch writes there."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("[Gloo] "))


@functools.cache
def _forker() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The one forker of this test process. It ends when nobody holds the other end of its socket any more."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC_", "PADDLE_"))}
    with there:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.scripts.torch_forkserver", str(there.fileno())],
            cwd=ROOT,
            env={
                **kept,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return here, process


def main() -> None:
    """Serve orders; in a forked process, run what was ordered as python does."""
    gc.disable()
    for name in LOADED:
        importlib.import_module(name)
    import torch

    gc.freeze()  # Else each process's collector touches, and so copies, all that was imported.
    gc.enable()

    words, environ, cwd = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    warnings.resetwarnings()
    warnings.simplefilter(environ.get("PYTHONWARNINGS") or "default")  # type: ignore[arg-type]  # One word, if any.
    random.seed()
    torch.seed()
    sys.argv = words
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # As python does: no warning at its end.
    _leave(_ran(words[0]))


def _ran(what: str) -> int:
    """Run a module, or a script, to its end; the exit code. What nobody catches is told as python tells it."""
    try:
        try:
            if what.endswith(".py"):
                sys.path.insert(0, str(Path(what).resolve().parent))
                runpy.run_path(what, run_name="__main__")
            else:
                runpy.run_module(what, run_name="__main__", alter_sys=True)
        except Exception as error:  # noqa: BLE001  # Any may end a script.
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _leave(code: int) -> NoReturn:
    """End this process: threads are awaited and exit functions called.

    What python does after that, taking apart all that torch has loaded, takes 0.3 s of processor time and can be seen
    by nobody.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(control: socket.socket) -> tuple[list[str], dict[str, str], str]:
    """Fork for each order and report each end; returns in the forked processes only."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    pid, report = running.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    with report:
                        report.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                    continue
                text, fds, *_ = socket.recv_fds(control, ORDER_BYTES_MAX, 4)
                if not text:
                    for pid, _ in running.values():
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                stdin, stdout, errors, told = fds
                if not (pid := os.fork()):
                    for watched, (_, other) in running.items():
                        os.close(watched)
                        other.close()
                    os.dup2(stdin, 0)
                    os.dup2(stdout, 1)
                    os.dup2(errors, 2)
                    for fd in fds:
                        os.close(fd)
                    control.close()
                    order = json.loads(text)
                    return order["words"], order["environ"], order["cwd"]
                for fd in (stdin, stdout, errors):
                    os.close(fd)
                report = socket.socket(fileno=told)
                report.send(str(pid).encode())
                running[watched := os.pidfd_open(pid)] = (pid, report)
                selector.register(watched, selectors.EVENT_READ)


if __name__ == "__main__":
    main()
