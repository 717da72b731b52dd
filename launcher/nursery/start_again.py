"""A preloaded worker whose script sets a variable too late is run again from its first line, without preloading.

Modules that were loaded before the script have read environment variables. An earlier run of the script shows which of
them it sets. If it sets another one this time, before its process group forms, the loaded modules would not know its
value. The script is then run from its first line again, in the same process and in a fresh Python: nothing is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, NoReturn

from elastic.channel import client, messages
from elastic.errors import ConfigError
from launcher.nursery import spawn
from launcher.nursery.protocol import WorkerStart
from launcher.system.worker_signals import on_parent_death

REASON: Final = "the script now sets {}, but a preloaded module has already read it"


class VariableGuard:
    """Watches what a script does to its environment, from `start` to `stop`."""

    def __init__(self, variables: Collection[str], but: Collection[str]) -> None:
        """`variables` are those that must not be changed, without `but`; "A_*" means all that begin with "A_"."""
        self._variables, self._but = frozenset(variables), frozenset(but)
        self._beginnings = tuple(name[:-1] for name in variables if name.endswith("*"))
        self._originals: dict[str, Any] = {}

    def start(self, changes: Callable[[str], object]) -> None:
        """Start; `changes` is called with the name of a variable that is about to change."""
        if not self._variables:
            return
        kind, pid = type(os.environ), os.getpid()
        self._originals = originals = {name: vars(kind)[name] for name in ("__setitem__", "__delitem__")}
        set_item, delete_item = originals.values()

        def look(environ: Any, name: Any, text: object) -> None:
            variable = os.fsdecode(name) if isinstance(name, str | bytes) else ""
            watched = variable in self._variables or variable.startswith(self._beginnings)
            if watched and variable not in self._but and os.getpid() == pid and environ.get(name) != text:
                changes(variable)

        def set_(environ: Any, name: Any, text: Any) -> None:
            look(environ, name, text)
            set_item(environ, name, text)

        def delete(environ: Any, name: Any) -> None:
            look(environ, name, None)
            delete_item(environ, name)

        kind.__setitem__, kind.__delitem__ = set_, delete  # type: ignore[method-assign]

    def stop(self) -> None:
        """End."""
        for name, original in self._originals.items():
            setattr(type(os.environ), name, original)
        self._originals = {}


def start_again(start: WorkerStart, umask: int, variable: str) -> NoReturn:
    """Send the reason to the agent and the worker's log, and start the worker again, without preloading.

    May be called in any thread; what an exec keeps of the process is as at its first start.
    """
    with contextlib.suppress(OSError, ConfigError, KeyError):
        end = client.connected_client() or client.ChannelClient(
            start.env[messages.VARIABLE], client.hello(start.env, stacks_signal=0)
        )
        end.send(messages.StartedAgain(variable))
        end.close()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    why = REASON.format(variable)
    os.write(2, os.fsencode(f"elastic-launch: {why}: starting the script again without preloading\n"))
    on_parent_death(signal.SIGKILL)  # It belongs to the thread that calls exec.
    libc = ctypes.CDLL(None)
    for number in signal.valid_signals():
        libc.signal(int(number), 0)  # SIG_DFL. Python lets only its main thread do this.
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(umask)
    try:
        os.chdir(start.cwd)
        spawn.execute(start)
    except OSError as error:
        os.write(2, spawn.start_error(start, error))
        os._exit(spawn.CANNOT_START)
