"""How a fork server starts: it takes its socket and its lock, imports what its workers need, and supervises them.

It sends `NurseryUp` immediately, and `NurseryReady` when it accepts requests. One that is not fit to fork preloaded
workers after its imports starts over in the same process, without preloading. So does one that is to be renewed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from launcher.nursery import spawn
from launcher.nursery.fd_channel import ChannelClosed, FdChannel
from launcher.nursery.protocol import ModuleBegins, ModuleUnfit, NurseryReady, NurseryReport, NurseryUp, encode
from launcher.nursery.supervisor import Nursery, NurseryExit
from launcher.nursery.warm_policy import why_cold
from launcher.system import node_lock
from launcher.system.priority import raise_priority
from launcher.system.processes import adopt_orphans, descendants
from launcher.system.worker_signals import kill_processes, on_parent_death

if TYPE_CHECKING:
    from launcher.nursery.run_script import ForkTemplate

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
"""Ctrl-C and a closing terminal are the agent's business; the agent decides what to do."""


class NurserySetup(NamedTuple):
    """How a fork server is started: its only argument, as JSON.

    `fd` is its end of the socket pair to the process `agent`. `lock` is the file to hold, "" for none; `lock_fd` is the
    lock if this process holds it already, else -1. `cold` says why nothing is imported, "" if `preload` and torch are.
    `folder` is where the workers' Python looks first. With `learns` workers report what their script imports. `home` is
    the directory of our packages, if Python would not find them.
    """

    fd: int
    agent: int
    lock: str = ""
    lock_fd: int = -1
    cold: str = ""
    preload: tuple[str, ...] = ()
    folder: str | None = None
    learns: bool = False
    home: str = ""

    @property
    def text(self) -> str:
        """Return the argument."""
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, text: str) -> NurserySetup:
        """Read the argument."""
        raw = json.loads(text)
        return cls(**(raw | {"preload": tuple(raw["preload"])}))


START = (
    "import sys; sys.path[:] = sys.path[not sys.flags.safe_path :];"
    " home = __import__('json').loads(sys.argv[1])['home']; sys.path += [home] * bool(home);"
    " from launcher.nursery.main import main; main()()"
)
"""The code that Python runs. It gets no flags, so that `sys.flags` are those of any worker; no file in its working
directory can shadow a module of Python."""


def main() -> Callable[[], NoReturn]:
    """Run as a fork server to its end; return only in a new process, with what to call there as the worker."""
    setup, environ = NurserySetup.read(sys.argv[1]), dict(os.environ)
    agent = FdChannel(socket.socket(fileno=setup.fd))
    lock: node_lock.NodeLock | None = None
    try:
        if setup.lock:
            path = Path(setup.lock)
            lock = node_lock.NodeLock(path, setup.lock_fd) if setup.lock_fd >= 0 else node_lock.hold(path)
            setup = setup._replace(lock_fd=lock.fd)
    except OSError as error:
        sys.exit(f"elastic-launch: cannot take the lock of this node: {error}")
    adopt_orphans()
    parents = {setup.agent, os.getppid()}  # A renewed successor may still have the fork server before it.
    if os.getppid() == setup.agent:
        on_parent_death(signal.SIGKILL)  # During imports it has no workers to stop first.
    _ignore()
    agent.put(encode(NurseryUp()))
    agent.flush()
    ready, template = (NurseryReady(setup.cold, "", ()), None) if setup.cold else _warm(setup, agent, environ)
    _ignore()  # What was imported may have changed them.
    on_parent_death(signal.SIGCONT)
    raise_priority()  # Only now: imports may take a core for seconds.
    cold = setup.cold
    why = lambda start: cold or why_cold(start.argv, start.env, environ)  # noqa: E731
    while True:
        try:
            end = Nursery(agent, parents, why).serve(ready)
        except spawn.ChildStarted as born:
            assert template is not None
            return partial(template.run, born.start)
        except spawn.SuccessorStarted as born:
            assert template is not None
            agent, setup = FdChannel(socket.socket(fileno=born.fd)), setup._replace(fd=born.fd)
            parents = {setup.agent, born.parent}
            ready, template = _succeed(born, agent, parents, setup.folder, template)
            continue
        if end is NurseryExit.RENEWED:
            _again(setup, agent, environ)
        if lock is not None and end is NurseryExit.CLOSED:
            lock.remove()
        sys.stderr.flush()
        os._exit(0)  # Python would take apart all that was imported, for a second.


def _warm(setup: NurserySetup, agent: FdChannel, environ: dict[str, str]) -> tuple[NurseryReady, ForkTemplate]:
    """Import; return what to report, and how a forked process becomes its worker.

    A process that is not fit to fork afterwards starts over, without preloading.
    """
    from launcher.nursery import preload

    path = sys.path[: -1 if setup.home else None]
    try:
        made = preload.preload_modules(setup.preload, setup.folder)
    except preload.NotForkSafe as error:
        kill_processes(descendants(os.getpid()))
        _again(setup._replace(cold=str(error)), agent, environ)
    from launcher.nursery import run_script

    return NurseryReady("", made.said, made.watched), run_script.ForkTemplate(
        path, environ, made.added, learns=setup.learns
    )


def _succeed(
    born: spawn.SuccessorStarted, agent: FdChannel, parents: Collection[int], folder: str | None, before: ForkTemplate
) -> tuple[NurseryReady, ForkTemplate]:
    """In a new process: load what the script has imported, to serve after the fork server that has forked this one."""
    from launcher.nursery import learned

    def say(report: NurseryReport, fds: Sequence[int] = ()) -> None:
        agent.put(encode(report), fds)
        try:
            agent.flush()
        except ChannelClosed:  # It is no longer needed.
            os._exit(0)

    adopt_orphans()
    _ignore()
    say(NurseryUp(), [os.pidfd_open(os.getpid())])
    try:
        made = learned.load_learned(born.order, folder, lambda name: say(ModuleBegins(name)))
    except learned.Unfit as error:
        kill_processes(descendants(os.getpid()))
        say(ModuleUnfit(error.name, error.why))
        os._exit(0)
    _ignore()
    on_parent_death(signal.SIGCONT)
    if os.getppid() not in parents:
        os._exit(0)
    raise_priority()
    return NurseryReady("", made.said, made.watched, made.loaded), before.with_learned(made, born.order.changed)


def _again(setup: NurserySetup, agent: FdChannel, environ: dict[str, str]) -> NoReturn:
    """Replace this process by a new fork server: it keeps its process ID, its socket and its lock."""
    os.set_inheritable(agent.fileno(), True)
    os.execve(sys.executable, [*sys.orig_argv[:-1], setup.text], environ)


def _ignore() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
