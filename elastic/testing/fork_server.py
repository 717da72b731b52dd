"""A process that has imported torch once and forks the replicas: `python -m elastic.testing.fork_server FD`.

It is single-threaded. FD is its end of a socket pair (SOCK_SEQPACKET), on which it is told what to start and what to
signal, and says what has ended. When the other end is gone, however that came, it kills every replica with its whole
session, removes the folder of the run, and ends: nothing is left behind.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
from dataclasses import dataclass

from elastic.testing.environment import FILES
from elastic.testing.fork_protocol import (
    PACKET_MAX,
    ImportsDone,
    ReplicaExited,
    StartReplica,
    encode,
    told,
)

PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.utils.data",
    "elastic.channel.client",
    "elastic.testing.replica",
)
"""What most functions need. The first optimizer of a process imports torch._dynamo, which takes a second."""
PR_SET_PDEATHSIG = 1


_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Child:
    """A replica that is not reaped yet, so that its pid is its own."""

    pid: int
    pidfd: int
    """Readable once it has ended."""

    def signal(self, number: int, *, session: bool) -> None:
        """Signal it, or its session."""
        if session:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # It has not made its session yet.
                os.kill(self.pid, number)
        else:
            os.kill(self.pid, number)

    def reap(self) -> int:
        """Kill what it left running in its session, and wait for it; its exit code, or minus a signal."""
        self.signal(signal.SIGKILL, session=True)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)


def serve(control: socket.socket) -> StartReplica | None:
    """Fork what is wished until the other end is gone: None then. In a replica: what it is to run."""
    running: dict[int, _Child] = {}
    folder = ""
    for ending in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C and timeout(1) tell the whole group. The run says what ends, or the end of its socket does: then
        # everything goes that replicas have started, which would stay if this process went first.
        signal.signal(ending, signal.SIG_IGN)
    control.send(encode(ImportsDone()))
    while True:
        watched: list[int | socket.socket] = [control, *(child.pidfd for child in running.values())]
        readable, _, _ = select.select(watched, [], [])
        try:
            for number in [number for number, child in running.items() if child.pidfd in readable]:
                control.send(encode(ReplicaExited(number, running.pop(number).reap())))
            packet = control.recv(PACKET_MAX) if control in readable else None
        except ConnectionError:
            packet = b""
        if packet is None:
            continue
        if not packet:
            for child in running.values():
                child.signal(signal.SIGKILL, session=True)
            for child in running.values():
                child.reap()
            shutil.rmtree(folder, ignore_errors=True)  # Of the last run, which has removed it unless it was killed.
            return None
        message = told.decode(packet)
        if isinstance(message, StartReplica):
            folder = os.path.dirname(message.env[FILES])
            pid = _fork(message)
            if pid == 0:
                for child in running.values():
                    os.close(child.pidfd)
                control.close()
                return message
            running[message.number] = _Child(pid, os.pidfd_open(pid))
        elif message.number in running:
            running[message.number].signal(message.signal, session=message.session)


def _fork(start: StartReplica) -> int:
    """Fork. The new process leads a session, dies with this one, and writes to its own file."""
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            _LIBC.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            output = os.open(f"{start.env[FILES]}.output", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(start.cwd)
            os.environ.clear()
            os.environ.update(start.env)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def main() -> None:
    """Import, then serve; a replica runs its function and ends."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    gc.disable()  # Nothing of what is imported is garbage.
    for name in PRELOAD:
        importlib.import_module(name)
    gc.freeze()  # Else each replica's collector touches, and so copies, all that was imported: 0.5 s for each.
    gc.enable()
    start = serve(control)
    if start is not None:
        from elastic.testing import replica

        replica.leave(replica.main())


if __name__ == "__main__":
    main()
