"""A run: a sequence of worlds on this machine."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import secrets
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from elastic.channel import messages
from elastic.channel.server import WorkerConnection
from elastic.errors import RunFailed, RunHung
from elastic.testing import fork_client, fork_protocol, replica
from elastic.testing.environment import SOCKET, TASK, ReplicaPlace, environment
from elastic.testing.failure_text import failed_text, hung_text
from elastic.testing.node import ReplicaNode
from elastic.testing.result import Replica, Result, WorldResult, read
from elastic.testing.schedule import At, Failure, How, World, failed_nodes, memberships, worlds_of
from elastic.testing.world_run import RunningReplica, WorldRun
from elastic.train.checkpoint import fence

STACKS_S: Final = 5.0
"""The time to wait for the stack traces of hung replicas."""
SOCKET_PATH_MAX: Final = 64
"""The longest path of the directory, in bytes: a Unix socket in it may have 107."""


def run(
    function: Callable[..., Any],
    *,
    worlds: Sequence[int | World],
    change_at: Sequence[At] = (),
    how: How | Sequence[How] = "planned",
    slots: int = 1,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_dirs: str | os.PathLike[str] | None = None,
    timeout_s: float = 120.0,
) -> Result:
    """Run a function in every replica of each world, and return the results.

    Replicas have the environment of workers of elastic-launch. They use gloo, no GPUs, and one thread each. When `run`
    returns or raises, no replica is left, and their memory is freed.

    Args:
        function: The function that each replica calls, defined at the top level of its module. It returns None,
            tensors, numbers, strings, or lists and dicts of them.
        worlds: In the short form, the number of nodes of each world. In the long form, `World` values.
        change_at: In the short form, for each change between two worlds, the step at which the first one ends, or the
            string that replicas pass to `reached`. A world ends soon after the first replica reports the step on the
            local channel, or exactly there if the replicas call `reached`.
        how: In the short form, the kind of the changes: "planned", "node_failure" or "failure", one for all changes or
            one for each. A change to more nodes is always planned unless it is a "failure".
        slots: The number of replicas on each node.
        args: Positional arguments of the function; they are pickled.
        kwargs: Keyword arguments of the function; they are pickled.
        env: Environment variables of the replicas, which override all others.
        checkpoint_dir: The checkpoint directory that all nodes share; by default a temporary directory.
        checkpoint_dirs: Instead of `checkpoint_dir`: a directory with a separate checkpoint directory for each node,
            as on storage that is not shared.
        timeout_s: The timeout of the whole run, in seconds.

    Returns:
        The worlds, with the return value, output and exit code of each replica.

    Raises:
        RunFailed: The run did not go as scheduled. The message names the replica and has the end of its output.
        RunHung: The run took longer than `timeout_s`. The message has the stack traces of all running replicas.
        ValueError: The arguments contradict each other, or other processes cannot import the function by its name.
    """
    full = worlds_of(worlds, change_at, how)
    if slots < 1:
        raise ValueError(f"slots is {slots}; it must be 1 or more")
    if checkpoint_dir is not None and checkpoint_dirs is not None:
        raise ValueError("pass either checkpoint_dir or checkpoint_dirs, not both")
    for world in full:
        if isinstance(world.until, Failure) and not 0 <= world.until.rank < world.nodes * slots:
            raise ValueError(f"Failure(rank={world.until.rank}): the world of {world.nodes} nodes has no such rank")
    call = _pickled(function, tuple(args), dict(kwargs or {}))
    parent = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="elastic-run-", dir=parent if len(parent) < SOCKET_PATH_MAX else "/tmp"
    ) as name:
        folder = Path(name)
        _write_task(folder, function.__module__, call)
        test_run = _TestRun(folder, full, slots, env or {}, checkpoint_dir, checkpoint_dirs, timeout_s)
        with contextlib.closing(test_run):
            return test_run.all_worlds()


class _TestRun:
    def __init__(
        self,
        folder: Path,
        worlds: Sequence[World],
        slots: int,
        env: Mapping[str, str],
        checkpoint_dir: str | os.PathLike[str] | None,
        checkpoint_dirs: str | os.PathLike[str] | None,
        timeout_s: float,
    ) -> None:
        self._server = fork_client.take_server()
        self._folder, self._worlds, self._slots, self._env = folder, worlds, slots, env
        self._shared = Path(checkpoint_dir or folder / "checkpoints").absolute()
        self._own = None if checkpoint_dirs is None else Path(checkpoint_dirs).absolute()
        self._timeout_s, self._deadline_s = timeout_s, time.monotonic() + timeout_s
        self._incarnation = secrets.token_hex(8)
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(folder / SOCKET))
        self._listening.listen(256)
        self._nodes: dict[int, ReplicaNode] = {}
        self._story: WorldRun | None = None
        self._numbers = itertools.count()
        self._details: list[str] = []
        self._selector.register(self._server, selectors.EVENT_READ, self._from_server)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Keep the fork server for the next run if no replica runs; otherwise end it and them."""
        for node in self._nodes.values():
            node.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        if (self._story is None or not self._story.running) and self._server.usable:
            fork_client.idle.append(self._server)
        else:
            self._server.close()

    def all_worlds(self) -> Result:
        result = Result([])
        members = memberships(self._worlds)
        for index, nodes in enumerate(members):
            with socket.socket() as held:  # Bound, not listening: only the store of rank 0 takes it.
                held.bind(("127.0.0.1", 0))
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                result.worlds.append(self._world(index, nodes, held.getsockname()[1]))
            after = members[index + 1] if index + 1 < len(members) else ()
            for number in set(nodes) - set(after):
                self._nodes.pop(number).close()
        return result

    def _world(self, index: int, members: Sequence[int], port: int) -> WorldResult:
        world, generation = self._worlds[index], index + 1
        for number in members:
            if number not in self._nodes:
                self._nodes[number] = ReplicaNode(
                    number, self._folder, self._selector, self._on_message, self._details.append
                )
        fence.claim(self._checkpoint_dir(members[0]), f"{self._incarnation}/{generation}")
        nodes = [self._nodes[number] for number in members]
        actors = [
            self._actor(generation, nodes, m_id, local_rank)
            for m_id in range(len(members))
            for local_rank in range(self._slots)
        ]
        seen = WorldResult(generation, tuple(node.name for node in nodes), [actor.seen for actor in actors])
        story = WorldRun(self._server, world.until, failed_nodes(self._worlds, index), actors, seen)
        if self._story is not None:
            story.saved = self._story.saved
        self._story = story
        for actor in actors:
            self._start(actor, port, story.saved)
        try:
            while story.running:
                self._step(story)
        finally:
            failures = {actor.place.rank: read(actor.seen, actor.files) for actor in actors}
        if story.broken:
            raise RunFailed(failed_text(story, failures, self._details))
        return seen

    def _actor(self, generation: int, nodes: Sequence[ReplicaNode], m_id: int, local_rank: int) -> RunningReplica:
        number = next(self._numbers)
        node = nodes[m_id]
        place = ReplicaPlace(
            number=number,
            generation=generation,
            rank=m_id * self._slots + local_rank,
            local_rank=local_rank,
            slots=self._slots,
            m_id=m_id,
            nodes=len(nodes),
            node=node.name,
        )
        return RunningReplica(place, node, str(self._folder / f"replica.{number}"), Replica(place.rank, node.name))

    def _start(self, actor: RunningReplica, port: int, saved: str) -> None:
        made = environment(
            actor.place,
            base=os.environ,
            more=self._env,
            port=port,
            incarnation=self._incarnation,
            failures=sum(isinstance(world.until, Failure) for world in self._worlds[: actor.place.generation - 1]),
            checkpoint_dir=str(self._checkpoint_dir(actor.node.number)),
            channel=actor.node.server.path,
            saved=saved,
            files=actor.files,
        )
        self._server.start(actor.place.number, made)

    def _checkpoint_dir(self, node: int) -> Path:
        return self._shared if self._own is None else self._own / f"node{node}"

    def _step(self, story: WorldRun) -> None:
        """Wait for the next event, and handle it."""
        now = time.monotonic()
        if now >= self._deadline_s:
            self._hung(story)
        if story.kill_at_s is not None and now >= story.kill_at_s:
            story.tick()
        until_s = min(self._deadline_s, story.kill_at_s or self._deadline_s)
        self._wait(until_s - now)

    def _wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(max(0.0, seconds)):
            if self._selector.get_map().get(key.fileobj) is key:  # No earlier event has closed it.
                key.data()

    def _hung(self, story: WorldRun) -> None:
        """Dump the stack traces of all running replicas, which ends them, and raise `RunHung`."""
        hanging = story.running
        waiting = story.waiting_words()
        for actor in hanging:
            story.signal(actor, replica.STACKS, session=False)
        limit_s = time.monotonic() + STACKS_S
        while story.running and time.monotonic() < limit_s:
            self._wait(limit_s - time.monotonic())
        story.tick()
        while story.running:
            self._wait(STACKS_S)
        for actor in hanging:
            read(actor.seen, actor.files)
        raise RunHung(hung_text(story, hanging, self._timeout_s, waiting, self._details))

    def _on_message(self, connection: WorkerConnection, message: messages.WorkerMessage) -> None:
        if self._story is not None and connection.hello is not None:
            self._story.heard(connection.hello, message)

    def _from_server(self) -> None:
        message = self._server.receive()
        if isinstance(message, fork_protocol.ReplicaExited) and self._story is not None:
            for node in list(self._nodes.values()):
                node.server.catch_up()  # Its last messages count before its exit.
            self._story.exited(message.number, message.code)

    def _accept(self) -> None:
        end, _ = self._listening.accept()
        self._selector.register(end, selectors.EVENT_READ, lambda: self._read(end))

    def _read(self, end: socket.socket) -> None:
        try:
            data = end.recv(fork_protocol.PACKET_MAX)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(end)
            end.close()
        elif self._story is not None:
            self._story.reached(msgspec.json.decode(data, type=replica.MarkReached), end)


def _pickled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle the call. Raises `ValueError` if other processes cannot import the function by its name."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
        raise ValueError(
            f"{name or function!r} cannot be imported from {module or 'any module'} by its name, so that no other "
            "process can run it; define it at the top level of its module"
        ) from error
    return pickle.dumps((function, args, kwargs))


def _write_task(folder: Path, module: str, call: bytes) -> None:
    """Write the task of the replicas to a private directory, where no other user can put a pickle."""
    file = getattr(sys.modules[module], "__file__", None)
    task = replica.ReplicaTask(
        module=module,
        file=os.path.abspath(file) if file else "",
        path=[os.path.abspath(entry) for entry in sys.path],
        argv=[os.path.abspath(file) if file else "-"],
        call=call,
    )
    (folder / TASK).write_bytes(msgspec.json.encode(task))
