"""torchrun itself on a real etcd with our plugin, its lines and its workers' as something to await.

Most stories fork torchrun from a process that has loaded torch (`torch_forkserver`): each would otherwise spend two
seconds of processor time on that import.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TextIO

from elastic.store.embedded import guarded
from tests.scripts.torch_forkserver import Forked
from tests.support.agent_process import Node, Process
from tests.support.awaited_events import LIMIT_S, Happenings
from tests.support.etcd_servers import Server

WORKER = """
import os, sys, time
print("works", *(os.environ[name] for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
with open(sys.argv[1]) as end:
    sys.exit(int(end.read() or 0))
"""
"""Says rank, world and the restarts that torchrun has counted; ends with the code in a file once that is there."""


NOT_OURS = ("ELASTIC_", "PADDLE_", "GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT")
"""Variables that a torchrun is not to inherit: an earlier test may have loaded gRPC as parameter servers do."""


class ForkedProcess:
    """A forked process as asyncio shows one that it has started."""

    def __init__(self, forked: Forked, stdout: asyncio.StreamReader, stderr: asyncio.StreamReader) -> None:
        self._forked = forked
        self.pid = forked.pid
        self.stdout = stdout
        self.stderr = stderr

    @classmethod
    async def start(cls, words: tuple[str, ...], cwd: Path, environ: Mapping[str, str]) -> ForkedProcess:
        """Fork one that runs a module or a script (.py), and its arguments, without a stdin."""
        errors_end, errors = os.pipe()
        forked = Forked(words, environ, cwd=cwd, errors=errors)
        os.close(errors)
        forked.stdin.close()
        return cls(forked, await _reader(forked.stdout), await _reader(os.fdopen(errors_end)))

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def send_signal(self, number: int) -> None:
        self._forked.send_signal(signal.Signals(number))

    async def wait(self) -> int:
        return await asyncio.to_thread(self._forked.wait, LIMIT_S)


async def _reader(file: TextIO) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


class Torchruns:
    """Those of one job."""

    def __init__(self, etcd: Server, folder: Path) -> None:
        self.etcd = etcd
        self.folder = folder
        self.job_id = f"torchrun-{secrets.token_hex(4)}"
        self.told = Happenings()
        self.nodes: list[Node] = []
        self.end = folder / "end"
        (folder / "worker.py").write_text(WORKER)
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Torchruns]:
        """At the end, nothing is left of any of them."""
        try:
            yield self
        except BaseException as error:
            for node in self.nodes:
                error.add_note("\n".join([f"--- {node.name}", *node.lines, *(f"stdout: {one}" for one in node.shown)]))
            raise
        finally:
            for node in self.nodes:
                if node.process.returncode is None:  # A forked one shows the forker's environment, without the mark.
                    node.signal(signal.SIGKILL)
                for pid in node.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            await asyncio.gather(*self._tasks)

    async def start(
        self,
        nnodes: str,
        *script: str,
        conf: str = "",
        restarts: int = 3,
        job_id: str = "",
        program: str = "torch.distributed.run",
        local_addr: str = "",
        environ: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> Node:
        """Start one.

        A `forked` one ends as `torch_forkserver` does: where the exit code of an error matters, python runs it.
        """
        flags = ("--rdzv-backend", "elastic-etcd", "--rdzv-endpoint", self.etcd.endpoint)
        settings = ("last_call_timeout=0.5", "lease_ttl=10", *filter(None, [conf]))
        start = self.fork if forked else functools.partial(self.run, "-m")
        return await start(
            *(program, *flags, "--rdzv-id", job_id or self.job_id, "--nnodes", nnodes),
            *(("--local-addr", local_addr) if local_addr else ()),
            *("--nproc-per-node", "1", "--max-restarts", str(restarts), "--rdzv-conf", ",".join(settings)),
            *(script or (str(self.folder / "worker.py"), str(self.end))),
            environ=environ,
        )

    async def run(self, *argv: str, environ: Mapping[str, str] | None = None) -> Node:
        """Start python with these arguments."""
        name, environment = self._named(environ)
        process = await asyncio.create_subprocess_exec(
            *guarded([sys.executable, *argv]),
            cwd=self.folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return self._followed(name, process, environment)

    async def fork(self, *words: str, environ: Mapping[str, str] | None = None) -> Node:
        """Start a module, or a script (.py), in a process that finds torch loaded."""
        name, environment = self._named(environ)
        return self._followed(name, await ForkedProcess.start(words, self.folder, environment), environment)

    def _named(self, environ: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
        """The next node's name, and its environment."""
        name = "ABCDEFGH"[len(self.nodes)]
        kept = {key: text for key, text in os.environ.items() if not key.startswith(NOT_OURS)}
        ours = {
            "TEST_MARK": f"elastic-test-{secrets.token_hex(8)}-{name}.",
            "NODE": name,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        return name, {**kept, **ours, **(environ or {})}

    def _followed(self, name: str, process: Process, environ: Mapping[str, str]) -> Node:
        node = Node(name, self.folder, process, environ["TEST_MARK"], self.told)
        self.nodes.append(node)
        self._tasks.append(asyncio.create_task(node.follow()))
        return node

    async def world(self, *nodes: Node) -> None:
        """Wait until the newest workers of these nodes are a world, in this order of ranks."""

        def look() -> bool:
            return all(
                (found := works(node)) and found[-1][:2] == (rank, len(nodes)) for rank, node in enumerate(nodes)
            )

        await self.told.until(look, f"a world of {', '.join(node.name for node in nodes)}")


def works(node: Node) -> list[tuple[int, int, int]]:
    """Rank, world size and restarts of each start of this node's worker."""
    found = [re.fullmatch(r"works (\d+) (\d+) (\d+)", line) for line in node.shown]
    return [(int(one[1]), int(one[2]), int(one[3])) for one in found if one]


def ctl(job: Torchruns, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `elastic-ctl`."""
    argv = ("-m", "launcher.ctl", *words, "--elastic-server", job.etcd.endpoint, "--job-id", job.job_id)
    return subprocess.run([sys.executable, *argv], cwd=Path.cwd(), capture_output=True, text=True, check=False)
