"""Real agents on a real etcd, workers that do what the test tells them, and all that happens as something to await.

A test is a story: an async function that starts nodes, gives orders to workers, and awaits lines, worlds and ends.
Whatever it does not await costs no time. After each story nothing of any node may be left, and no worker may ever
have started while one of an older world ran: this is checked for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import string
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from elastic.store.embedded import guarded
from tests.support.agent_process import Node
from tests.support.awaited_events import Happenings, process_end, runs
from tests.support.etcd_servers import Server
from tests.support.fake_workers import PUPPET, Worker

CALM_TTL_S = 10
QUICK_TTL_S = 2
"""Leases: calm where none is to end by a loaded machine, quick where the story waits for the end of one."""

LINE_BYTES_MAX = 1 << 20

WARM = bool(os.environ.get("JOB_TEST_WARM"))
"""Puppets need no torch: their nodes start cold, and three nodes need not import it. With this they start warm too."""


def _loads_torch(script: tuple[str, ...] | None) -> bool:
    """Tell whether a node that has torch loaded is of use to a script; others would wait seconds for it."""
    files = [Path(word) for word in script or () if word.endswith(".py")]
    return any("torch" in file.read_text() for file in files if file.exists()) or "-m" in (script or ())


class Job:
    """The stage of one story."""

    def __init__(self, etcd: Server, folder: Path, meeting: Path | None = None) -> None:
        """`meeting` is a socket for workers in other network namespaces, which have abstract ones of their own."""
        self.etcd = etcd
        self.folder = folder
        self.job_id = f"job-{secrets.token_hex(4)}"
        self.nodes: list[Node] = []
        self.workers: list[Worker] = []
        self.overlaps: list[str] = []
        self._name = f"elastic-test-{secrets.token_hex(8)}"
        self._meeting = str(meeting) if meeting else "@" + self._name
        self.told = Happenings()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._names = iter(string.ascii_uppercase)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Job]:
        """Hear the workers; at the end, end every node and see that nothing is left."""
        (self.folder / "tmp").mkdir()
        self.script = self.write("puppet.py", PUPPET)
        self._server = await asyncio.start_unix_server(self._meet, self._meeting.replace("@", "\0", 1))
        try:
            yield self
            assert not self.overlaps, self.overlaps
        except BaseException as error:
            error.add_note(self._transcript())
            raise
        finally:
            await self._close()

    async def _close(self) -> None:
        assert self._server is not None
        try:
            for node in self.nodes:
                if node.process.returncode is None:
                    node.signal(signal.SIGKILL)
            for node in self.nodes:
                await node.exits()
                await node.leaves_nothing()
        finally:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    def write(self, name: str, text: str) -> Path:
        """Put a script where every node finds it."""
        path = self.folder / name
        path.write_text(text)
        return path

    async def node(
        self,
        *flags: str,
        ttl_s: int = CALM_TTL_S,
        join_window_s: float = 0.5,
        script: tuple[str, ...] | None = None,
        server: bool = True,
        environ: Mapping[str, str] | None = None,
        beside: Node | None = None,
        within: tuple[str, ...] = (),
    ) -> Node:
        """Start an agent in a folder of its own, or in that of the node `beside`.

        Later flags win over the harness's; `server` names the etcd; `environ` comes on top of the environment that
        every node has here; `within` is a command that runs the agent's. It dies with the test's process, whatever
        ends that.
        """
        name = next(self._names)
        folder = self.folder / name if beside is None else beside.folder
        folder.mkdir(exist_ok=True)
        mark = f"{self._name}-{name}."
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("ELASTIC_", "PADDLE_"))}
        command = (
            *within,
            *(sys.executable, "-P", "-m", "launcher"),
            *(("--elastic-server", self.etcd.endpoint) if server else ()),
            *("--job-id", self.job_id, "--lease-ttl", str(ttl_s), "--join-window", str(join_window_s)),
            *("--checkpoint-dir", str(self.folder / "checkpoints")),
            *flags,
            *(script or (str(self.script),)),
        )
        process = await asyncio.create_subprocess_exec(
            *guarded(list(command)),
            cwd=folder,
            env={
                **kept,
                "JOB_TEST_SOCKET": self._meeting,
                "JOB_TEST_MARK": mark,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(self.folder / "tmp"),
                "ELASTIC_SPOT": "none",
                **({} if WARM or _loads_torch(script) else {"ELASTIC_NO_PRELOAD": "1"}),
                **(environ or {}),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        node = Node(name, folder, process, mark, self.told)
        self.nodes.append(node)
        self._keep(node.follow())
        return node

    async def world(self, generation: int, size: int, *, job_id: str = "") -> list[Worker]:
        """Wait until the workers of a generation run; in the order of their ranks."""

        def look() -> list[Worker] | None:
            found = [
                worker
                for worker in self.workers
                if worker.generation == generation
                and worker.env["ELASTIC_JOB_ID"] == (job_id or self.job_id)
                and not worker.ended
            ]
            assert found or not all(node.ended for node in self.nodes), "every node has ended"
            return found if len(found) == size else None

        found = await self.told.until(look, f"generation {generation} with {size} workers")
        found = sorted(found, key=lambda worker: worker.rank)
        assert [worker.rank for worker in found] == list(range(size))
        assert {worker.env["WORLD_SIZE"] for worker in found} == {str(size)}
        return found

    async def newest_world(self, size: int) -> list[Worker]:
        """Wait until as many workers run as the newest generation that any worker was of has; they must be `size`."""

        def look() -> int | None:
            assert not all(node.ended for node in self.nodes), "every node has ended"
            newest = max((worker.generation for worker in self.workers if not worker.ended), default=0)
            alive = [worker for worker in self.workers if worker.generation == newest and not worker.ended]
            return newest if alive and len(alive) == int(alive[0].env["WORLD_SIZE"]) == size else None

        return await self.world(await self.told.until(look, f"a world of {size}"), size)

    def node_of(self, worker: Worker) -> Node:
        """The node that started a worker, whether or not the agent's own lines have arrived here."""
        return next(node for node in self.nodes if node.mark == worker.env["JOB_TEST_MARK"])

    def newest_generation(self) -> int:
        """The newest generation that any worker was of."""
        return max((worker.generation for worker in self.workers), default=0)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear one worker from its first word to its end."""
        try:
            first = await reader.readline()
            if not first:
                return  # Killed before it had said a word.
            worker = Worker(self.told, writer, **json.loads(first))
            self._note_overlaps(worker)
            self.workers.append(worker)
            self.told.changed()
            with contextlib.suppress(ConnectionError):
                while await reader.readline():
                    worker.answers += 1
                    self.told.changed()
            await process_end(worker.pid)
            worker.ended = True
            self.told.changed()
        finally:
            writer.close()

    def _note_overlaps(self, new: Worker) -> None:
        """Promise 1: nothing of an older world runs when a worker of a newer one starts."""
        for old in self.workers:
            if (
                old.env["ELASTIC_JOB_ID"] == new.env["ELASTIC_JOB_ID"]
                and old.env["ELASTIC_FENCE"] != new.env["ELASTIC_FENCE"]
                and not old.ended
                and runs(old.pid)
            ):
                self.overlaps.append(f"{new.env['ELASTIC_FENCE']} started while {old.env['ELASTIC_FENCE']} ran")

    def _transcript(self) -> str:
        parts = []
        for node in self.nodes:
            parts.append(f"--- node {node.name}, exit code {node.process.returncode}")
            parts += node.lines
            parts += [f"stdout: {line}" for line in node.shown]
        for worker in self.workers:
            parts.append(f"worker: {worker.env['ELASTIC_FENCE']} rank {worker.rank} ended {worker.ended}")
        return "\n".join(parts)


class Stage:
    """Where stories are played: an etcd and a folder."""

    def __init__(self, etcd: Server, folder: Path) -> None:
        self.etcd = etcd
        self.folder = folder

    def play(self, story: Callable[[Job], Awaitable[None]]) -> None:
        async def run() -> None:
            async with Job(self.etcd, self.folder).open() as job:
                await story(job)

        asyncio.run(run())


def story(told: Callable[[Job], Awaitable[None]]) -> Callable[[Stage], None]:
    """Make a test of a story."""

    def test(stage: Stage) -> None:
        stage.play(told)

    return _named(test, told)


def story_with_its_own_etcd(told: Callable[[Job], Awaitable[None]]) -> Callable[[Stage], None]:
    """Make a test of a story that does something to etcd."""

    def test(own_stage: Stage) -> None:
        own_stage.play(told)

    return _named(test, told)


def _named(test: Callable[[Stage], None], told: Callable[[Job], Awaitable[None]]) -> Callable[[Stage], None]:
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(test, name, getattr(told, name))
    return test


LONG_TTL_S = 600


async def three_nodes(job: Job, *flags: str) -> list[Node]:
    """A world of three, whose leases tell nothing."""
    return [await job.node("--np", "3", *flags, ttl_s=LONG_TTL_S) for _ in range(3)]


async def workers_by_role(job: Job, *wanted: str, generation: int = 1) -> dict[str, Worker]:
    """Wait until these processes run: "server 0", "worker 1"."""

    def look() -> dict[str, Worker] | None:
        found = {
            f"{worker.env['ELASTIC_ROLE']} {worker.env['ELASTIC_INDEX']}": worker
            for worker in job.workers
            if not worker.ended and worker.generation == generation
        }
        return found if set(wanted) <= set(found) else None

    return await job.told.until(look, f"{', '.join(wanted)} run")
