"""Reports to the agent when the process group of a script that does not use the elastic library is ready.

It also makes the workers wait until rank 0 listens, in milliseconds: otherwise they lose half a second whenever rank 0
is not the first (`elastic._port_wait`).

A preloaded worker calls `install` before its script, when its environment is set.
`torch.distributed.init_process_group` is then a wrapper around torch's: it does what torch's does, and sends one
message before, which says that it waits, and one afterwards. Nothing is imported and nothing connected before it is
called: if torch is not loaded yet there is nothing to do, and the agent knows nothing about the worker after its start.
The messages use a connection that is closed at once, so that the worker does not seem to accept planned restarts.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any, Final

from elastic import _port_wait
from elastic.channel import client, messages
from elastic.errors import ConfigError
from launcher.nursery.import_recorder import Recording

OFF: Final = "ELASTIC_NO_TORCH_PATCH"
"""A worker that has this variable is not patched."""
HOME: Final = "torch.distributed.distributed_c10d"
NAME: Final = "init_process_group"
PLACED: Final = ("backend", "init_method", "timeout", "world_size", "rank", "store")
"""Its positional parameters, as far as they matter."""
OTHERS: Final = "the other workers"
PORT_MAX: Final = 65_535
LISTEN_LIMIT_S: Final = 5.0
"""After this time torch's own client waits, and warns: half a second more does not matter then."""
_kept: Final[list[Any]] = []
"""The groups that were made: they end with the process, and not before.

torch 2.13 with gloo hangs if a DDP model is the last to hold a group that the script has destroyed: the reducer is
destroyed while it holds Python's lock, and waits for a thread that needs the lock to release a collective (seen in 3 of
8 exits on a busy host). A preloaded worker exits without taking modules apart, so these groups are never released.
"""


def install(recorded: Callable[[], Recording | None]) -> bool:
    """Wrap torch's function, wherever it is called from; returns False if it is `OFF`, or torch is not loaded.

    `recorded` returns what the script has imported, once its process group has formed.

    To a script it is the same function: name, signature, documentation, and where pickle finds it.
    """
    home = sys.modules.get(HOME)
    theirs = getattr(home, NAME, None)
    if theirs is None or os.environ.get(OFF) or not os.environ.get(messages.VARIABLE):
        return False
    pid, said = os.getpid(), False
    environ = dict(os.environ)  # As it was given: the script may change it.

    @functools.wraps(theirs)
    def init_process_group(*args: Any, **options: Any) -> Any:
        nonlocal said
        own = os.getpid() == pid  # A process that the script forks is no worker.
        given = {**dict(zip(PLACED, args, strict=False)), **options}
        with _speaking(environ, given) if own and not said else nullcontext() as end:
            if own:
                _await_rank_0(given, os.environ)
            answer = theirs(*args, **options)
            _kept.append(getattr(getattr(home, "group", None), "WORLD", None))
            if end is not None:
                end.send(messages.GroupFormed(messages.clock()))
                recording = recorded()
                if recording is not None and (imports := _imports(recording)) is not None:
                    end.send(imports)
        said = said or own
        return answer

    for module in tuple(sys.modules.values()):  # Others have imported the name, as torch's device_mesh has.
        if isinstance(module, ModuleType) and vars(module).get(NAME) is theirs:
            setattr(module, NAME, init_process_group)
    return True


def _imports(recording: Recording) -> messages.ScriptImports | None:
    """Return the recording as a message for the agent."""
    modules = (messages.ScriptImport(*module) for module in recording.modules)
    return messages.script_imports(modules, recording.changed, (messages.OwnFile(*file) for file in recording.own))


def _await_rank_0(given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Wait a little for the listener, if torch is about to connect to one that the environment names."""
    if given.get("store") is not None or given.get("init_method") not in (None, "env://"):
        return
    named = {name: environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    if not all(number.isdecimal() for number in named.values()) or environ.get(_port_wait.AGENT_STORE) == "True":
        return
    rank, world_size, port = map(int, named.values())
    host, given_rank = environ.get("MASTER_ADDR", ""), given.get("rank", -1)
    rank = rank if given_rank == -1 else given_rank
    if host and isinstance(rank, int) and rank > 0 and 0 < port <= PORT_MAX:
        _port_wait.until_listening(host, port, world_size, LISTEN_LIMIT_S)


@contextmanager
def _speaking(environ: Mapping[str, str], given: Mapping[str, Any]) -> Iterator[client.ChannelClient | None]:
    """Yield the connection that this process has, or one for these two messages alone.

    `elastic.init` has reported its wait itself: it gives torch the store in which the workers have met.
    """
    end = client.connected_client()
    if end is not None:
        if given.get("store") is None:
            end.send(messages.JoiningGroup(OTHERS, at=messages.clock()))
        yield end
        return
    try:
        end = client.ChannelClient(environ[messages.VARIABLE], client.hello(environ, stacks_signal=0))
    except (OSError, ConfigError):  # The agent no longer listens; or the script changed its RANK: torch reports that.
        yield None
        return
    end.send(messages.JoiningGroup(OTHERS, at=messages.clock()))
    try:
        yield end
    finally:
        end.close()
