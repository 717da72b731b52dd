"""The process of a fork server: how the agent starts it, how it detects that one is out of date, and the channel to it.

Requests are sent and reports received in order, on the loop. No module of torch is loaded here.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.config.config import Config
from launcher.nursery import library_state, protocol
from launcher.nursery.fd_channel import ChannelClosed, FdChannel
from launcher.nursery.main import START, NurserySetup
from launcher.nursery.preload import stamp
from launcher.nursery.warm_policy import NO_WARM, PreloadConfig, read_early, why_environment_cold
from launcher.system import limits
from launcher.system.descriptors import ready
from launcher.system.private_env import inheritable_env
from launcher.system.processes import Process, adopt_orphans, descendants
from launcher.workers.nursery_watchdog import NurseryWatchdog

ANSWER_LIMIT_S = 2.0
"""How long the oldest request may stay without an answer. A fork server needs a few milliseconds."""


def new_nursery(fd: int, lock: Path | None, recipe: PreloadConfig) -> subprocess.Popen[bytes]:
    """Start a fork server in its own session, which a Ctrl-C does not reach. `fd` is its end of the socket pair."""
    setup = NurserySetup(
        fd,
        os.getpid(),
        lock="" if lock is None else str(lock),
        cold=recipe.cold,
        preload=recipe.preload,
        folder=recipe.folder,
        learns=recipe.learns,
        home="" if (home := library_state.home()) in library_state.installed() else home,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", START, setup.text],
        env=nursery_env(recipe, os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(fd,),
        start_new_session=True,
    )
    limits.restore_nofile_limit(process.pid)
    return process


def nursery_env(recipe: PreloadConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a fork server; it stays readable in the processes that it forks."""
    return {**dict(recipe.wishes), **inheritable_env(environ, ())}


def out_of_date(watched: Iterable[str]) -> bool:
    """Return whether one of these files has changed since a fork server loaded it."""
    return any(stamp(one.partition(":")[2]) != one for one in watched)


def preload_config(config: Config, environ: Mapping[str, str], wishes: Mapping[str, str]) -> PreloadConfig:
    """Return the recipe for the workers of this node. `wishes` are set for them where `environ` sets nothing."""
    if config.no_preload:
        cold = NO_WARM
    elif not config.python:
        cold = f"{Path(config.script).name} is not a Python script"
    else:
        cold = why_environment_cold(environ)
    folder: str | None = None
    if not environ.get("PYTHONSAFEPATH"):
        folder = os.getcwd() if config.module else os.path.dirname(os.path.realpath(config.script))
    early = tuple((name, text) for name, text in wishes.items() if read_early(name) and name not in environ)
    learns = not config.no_learn and config.run_mode == "collective"
    return PreloadConfig(cold, config.preload, folder, early, learns)


def _pid_of(pidfd: int) -> int:
    """Return the process of a descriptor; -1 if it has been reaped."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.removeprefix("Pid:")) for line in lines if line.startswith("Pid:"))


class NurseryProcess:
    """One fork server, from its start to its end. One that does not answer is killed."""

    def __init__(
        self,
        channel: FdChannel,
        pidfd: int,
        *,
        started: subprocess.Popen[bytes] | None,
        others: frozenset[int] | None,
        on_report: Callable[[protocol.NurseryReport], None],
        on_end: Callable[[], None],
        complain: Callable[[str], None],
    ) -> None:
        """Talk to a running one; see `start` and `take_over`."""
        self._loop = asyncio.get_running_loop()
        self._on_report, self._on_end, self._complain = on_report, on_end, complain
        self._ordered = self._answered = 0
        self._answers = NurseryWatchdog(lambda: self._ordered > self._answered, self._end_silent)
        self._others = others
        """The children that this process had before, None if it does not adopt those of the fork server."""
        self._started = started
        self.pid = started.pid if started is not None else _pid_of(pidfd)
        self.lives = True
        self._channel = channel
        self._pidfd = pidfd
        self._loop.add_reader(self._channel, self._read)
        self._loop.add_reader(self._pidfd, self._died)

    @classmethod
    def start(
        cls,
        lock: Path | None,
        recipe: PreloadConfig,
        *,
        adopts: bool,
        on_report: Callable[[protocol.NurseryReport], None],
        on_end: Callable[[], None],
        complain: Callable[[str], None],
    ) -> NurseryProcess:
        """Start one. Raises `OSError` if it cannot be started.

        `on_report` gets its reports, except its answers to requests; after the last report `on_end` is called. `lock`,
        `recipe`, `adopts` and `complain` as in `launcher.workers.nursery_client`.
        """
        others: frozenset[int] | None = None
        if adopts:
            adopt_orphans()
            others = frozenset(child.pid for child in descendants(os.getpid()))
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                started = new_nursery(theirs.fileno(), lock, recipe)
        except OSError:
            ours.close()
            raise
        return cls(
            FdChannel(ours),
            os.pidfd_open(started.pid),
            started=started,
            others=others,
            on_report=on_report,
            on_end=on_end,
            complain=complain,
        )

    @classmethod
    def take_over(
        cls,
        channel: FdChannel,
        pidfd: int,
        *,
        adopts: bool,
        on_report: Callable[[protocol.NurseryReport], None],
        on_end: Callable[[], None],
        complain: Callable[[str], None],
    ) -> NurseryProcess:
        """Return one that another fork server has forked, which leaves it to this process when it ends."""
        pid = _pid_of(pidfd)
        others: frozenset[int] | None = None
        if adopts:
            others = frozenset(child.pid for child in descendants(os.getpid()) if child.pid != pid)
        return cls(channel, pidfd, started=None, others=others, on_report=on_report, on_end=on_end, complain=complain)

    def hand_over(self) -> asyncio.Future[None]:
        """Let the fork server end, because another one serves the node. From now on only its end is reported."""
        self.order(protocol.HandOver())
        ended: asyncio.Future[None] = self._loop.create_future()
        self._on_report, self._on_end = lambda report: None, lambda: ended.set_result(None)
        self._complain = lambda text: None
        return ended

    def order(self, order: protocol.NurseryOrder, fds: Sequence[int] = ()) -> None:
        """Queue a request. It is dropped if the fork server has ended."""
        if self.lives:
            self._channel.put(protocol.encode(order), fds)
            self._ordered += 1
            if self._ordered == self._answered + 1:
                self._answers.expect(ANSWER_LIMIT_S)
            self._send()

    def kill(self) -> None:
        """Send SIGKILL; its workers die with it. One that has ended is no error."""
        self._answers.stop()
        if self.lives:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def left_behind(self) -> list[Process]:
        """Return the processes that this process inherited when it died, even in other sessions; zombies are reaped."""
        if self._others is None:
            return []
        found = [one for one in descendants(os.getpid()) if one.pid not in self._others]
        for process in found:
            if process.zombie and process.parent == os.getpid():
                os.waitpid(process.pid, 0)
        return [process for process in found if not process.zombie]

    def _end_silent(self) -> None:
        self._complain(f"the fork server has not answered for {ANSWER_LIMIT_S:g} s; killing it and its workers")
        self.kill()

    def _send(self) -> None:
        try:
            self._channel.flush()
        except ChannelClosed:
            self._loop.remove_writer(self._channel)  # It is dying; `_died` does the rest.
            return
        if self._channel.waiting:
            self._loop.add_writer(self._channel, self._send)
        else:
            self._loop.remove_writer(self._channel)

    def _read(self) -> bool:
        """Read one piece of the fork server's reports. Returns False once nothing more can come."""
        try:
            reports = [protocol.decode(line, protocol.REPORTS) for line in self._channel.take()]
        except ChannelClosed:
            self._loop.remove_reader(self._channel)
            return False
        except protocol.WireError as error:
            self._complain(f"cannot parse a report of the fork server ({error}); killing it")
            self.kill()
            return False
        for report in reports:
            match report:
                case protocol.OrderAck(orders):
                    self._answered = orders
                    self._answers.expect(ANSWER_LIMIT_S)
                    continue
                case protocol.NurseryReady():
                    self._ordered = self._answered = 0  # A fork server that was started again counts from 0.
            self._on_report(report)
        return True

    def _died(self) -> None:
        """Handle the end of the process, after its earlier reports have been delivered."""
        self.lives = False
        self._answers.stop()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._started is not None:
            self._started.wait()
        else:
            with suppress(ChildProcessError):  # Its parent died a moment ago, and has not left it to this process yet.
                os.waitpid(self.pid, 0)
        while ready(self._channel.fileno(), select.POLLIN, 0) and self._read():
            continue
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        self._on_end()
