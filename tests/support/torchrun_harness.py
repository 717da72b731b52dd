"""torchrun itself on a real etcd with our plugin, its lines and its workers' as something to await."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from elastic.store.embedded import guarded
from tests.support.agent_process import Node
from tests.support.awaited_events import Happenings
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
        program: tuple[str, ...] = ("-m", "torch.distributed.run"),
        local_addr: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> Node:
        """Start one."""
        flags = ("--rdzv-backend", "elastic-etcd", "--rdzv-endpoint", self.etcd.endpoint)
        settings = ("last_call_timeout=0.5", "lease_ttl=10", *filter(None, [conf]))
        return await self.run(
            *(*program, *flags, "--rdzv-id", job_id or self.job_id, "--nnodes", nnodes),
            *(("--local-addr", local_addr) if local_addr else ()),
            *("--nproc-per-node", "1", "--max-restarts", str(restarts), "--rdzv-conf", ",".join(settings)),
            *(script or (str(self.folder / "worker.py"), str(self.end))),
            environ=environ,
        )

    async def run(self, *argv: str, environ: Mapping[str, str] | None = None) -> Node:
        """Start python with these arguments."""
        name = "ABCDEFGH"[len(self.nodes)]
        mark = f"elastic-test-{secrets.token_hex(8)}-{name}."
        kept = {key: text for key, text in os.environ.items() if not key.startswith(NOT_OURS)}
        process = await asyncio.create_subprocess_exec(
            *guarded([sys.executable, *argv]),
            cwd=self.folder,
            env={
                **kept,
                "TEST_MARK": mark,
                "NODE": name,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                **(environ or {}),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        node = Node(name, self.folder, process, mark, self.told)
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
    argv = ("-m", "launcher.ctl", *words, "--elastic_server", job.etcd.endpoint, "--job_id", job.job_id)
    return subprocess.run([sys.executable, *argv], cwd=Path.cwd(), capture_output=True, text=True, check=False)
