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

from elastic.testing.fork_protocol import (
    PACKET_MAX,
    ImportsDone,
    ReplicaExited,
    SignalReplica,
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


def serve(control: socket.socket) -> StartReplica | None:
    """Fork what is wished until the other end is gone: None then. In a replica: what it is to run."""
    running: dict[int, int] = {}
    folder = ""
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    watched: list[int | socket.socket] = [control, awake]
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C and timeout(1) tell the whole group. The run says what ends, or the end of its socket does: then
        # everything goes that replicas have started, which would stay if this process went first.
        signal.signal(number, signal.SIG_IGN)
    control.send(encode(ImportsDone()))
    while True:
        readable, _, _ = select.select(watched, [], [])
        if awake in readable:
            os.read(awake, 4096)
            _reap(running, control)
        if control not in readable:
            continue
        packet = _packet(control)
        if not packet:
            _end(running, folder)
            return None
        message = told.decode(packet)
        if isinstance(message, StartReplica):
            folder = message.folder
            pid = _fork(message)
            if pid == 0:
                signal.set_wakeup_fd(-1)
                os.close(awake)
                os.close(wake)
                control.close()
                return message
            running[message.number] = pid
        elif isinstance(message, SignalReplica):
            if message.number in running:
                _signal(running[message.number], message.signal, message.session)
        else:
            folder = ""


def _packet(control: socket.socket) -> bytes:
    try:
        return control.recv(PACKET_MAX)
    except ConnectionError:
        return b""


def _reap(running: dict[int, int], control: socket.socket) -> None:
    for number, pid in list(running.items()):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            continue
        _signal(pid, signal.SIGKILL, session=True)  # While the pid is taken: what the replica itself left running.
        _, status = os.waitpid(pid, 0)
        del running[number]
        try:
            control.send(encode(ReplicaExited(number, os.waitstatus_to_exitcode(status))))
        except ConnectionError:
            return  # Nobody hears it any more; the next look at the socket ends this process.


def _signal(pid: int, number: int, session: bool) -> None:
    """Signal a child that is not reaped yet, so that its number is taken."""
    if session:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # It has not made its session yet.
            os.kill(pid, number)
    else:
        os.kill(pid, number)


def _end(running: dict[int, int], folder: str) -> None:
    for pid in running.values():
        _signal(pid, signal.SIGKILL, session=True)
    for pid in running.values():
        os.waitpid(pid, 0)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


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
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            output = os.open(start.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
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
