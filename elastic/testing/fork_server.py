"""A process that imports torch once and forks the replicas: `python -m elastic.testing.fork_server FD`.

It is single-threaded. FD is its end of a socket pair (SOCK_SEQPACKET), on which it receives the replicas to start and
to signal, and sends the exits. When the other end is closed for any reason, it kills every replica with its session,
removes the directory of the run, and exits, so that nothing remains.
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
    run_messages,
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
"""Modules that most functions need. The first optimizer of a process imports torch._dynamo, which takes a second."""
PR_SET_PDEATHSIG = 1


_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Child:
    """A replica that is not reaped yet, so that its pid cannot be reused."""

    pid: int
    pidfd: int
    """Readable once the replica has exited."""

    def signal(self, number: int, *, session: bool) -> None:
        """Signal the replica, or its session."""
        if session:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:  # It has not created its session yet.
                os.kill(self.pid, number)
        else:
            os.kill(self.pid, number)

    def reap(self) -> int:
        """Kill the rest of its session, wait for it, and return its exit code, or minus the number of a signal."""
        self.signal(signal.SIGKILL, session=True)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)


def serve(control: socket.socket) -> StartReplica | None:
    """Serve the run until its end of the socket is closed, and return None; in a replica, return its start message."""
    running: dict[int, _Child] = {}
    folder = ""
    for ending in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C and timeout(1) signal the whole process group. This process must outlive the run, to kill all processes
        # that replicas have started when the socket is closed.
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
            shutil.rmtree(folder, ignore_errors=True)  # The last run removes it, unless it was killed.
            return None
        message = run_messages.decode(packet)
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
    """Fork a process that leads a session, dies with this one, and writes to its own output file."""
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
    """Import, then serve; a replica runs its function and exits."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    gc.disable()  # Imports create no garbage.
    for name in PRELOAD:
        importlib.import_module(name)
    gc.freeze()  # Otherwise the collector of each replica touches, and so copies, all imports: 0.5 s.
    gc.enable()
    start = serve(control)
    if start is not None:
        from elastic.testing import replica

        replica.leave(replica.main())


if __name__ == "__main__":
    main()
