"""What is put around torch's init_process_group for scripts without the library: one word, and nothing else to see."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from elastic.channel.messages import VARIABLE, GroupFormed, JoiningGroup, WorkerHello, WorkerMessage
from elastic.channel.server import ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments
from tests.scripts.torch_forkserver import Forked
from tests.support.script_runs import environment

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0
"""How long a script may take on a slow machine."""

LOOKS = """
import inspect, json, pickle, sys
from launcher.nursery import torch_patch
before = torch_patch.install(lambda: None)
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d
theirs = dist.init_process_group
signature = inspect.signature(theirs)
installed = torch_patch.install(lambda: None)
ours = dist.init_process_group
print(json.dumps({
    "before": before,
    "installed": installed,
    "another": ours is not theirs,
    "everywhere": ours is distributed_c10d.init_process_group is device_mesh.init_process_group,
    "signature": inspect.signature(ours) == signature,
    "name": [ours.__module__, ours.__qualname__, ours.__doc__ == theirs.__doc__],
    "pickled": pickle.loads(pickle.dumps(ours)) is ours,
    "library": "elastic.train" in sys.modules,
}), flush=True)
"""

ENDS = """
import gc, os
import torch
import torch.distributed as dist
from launcher.nursery import torch_patch

def threads():
    return len(os.listdir("/proc/self/task"))

def end():
    dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    before = threads()
    dist.destroy_process_group()
    gc.collect()
    return threads() - before

alone = end()
torch_patch.install(lambda: None)
print(alone, end(), flush=True)
"""

GROUPS = """
import os
import torch
from torch.distributed import *
import torch.distributed as dist
from launcher.nursery import torch_patch
torch_patch.install(lambda: None)
if {aware}:
    import elastic
    elastic.report(step=0)
for _ in range(2):
    store = dist.HashStore()
    dist.init_process_group(backend="gloo", store=store, rank=0, world_size=1)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert {aware} or torch.compile(lambda x: x + 1, backend="eager")(value).item() == 2
    dist.destroy_process_group()
    if not (child := os.fork()):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
if {aware}:
    elastic.report(step=1)
"""

AWARE = """
import os
import torch.distributed as dist
from launcher.nursery import torch_patch
torch_patch.install(lambda: None)
import elastic
elastic.report(step=0)
dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(__file__)}.meeting", rank=0, world_size=1)
"""

CLEARS = """
import os
import torch.distributed as dist
from launcher.nursery import torch_patch
torch_patch.install(lambda: None)
os.environ.clear()
os.environ["RANK"] = "of my own"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
"""


MEETS = """
import sys
import torch.distributed as dist
from launcher.nursery import torch_patch
torch_patch.install(lambda: None)
print("connects", flush=True)
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


class Agent:
    """An agent's end of the channel; `heard` is what was said, with the number of the connection."""

    def __init__(self, folder: Path) -> None:
        self.heard: list[tuple[int, WorkerMessage]] = []
        self.lines: list[str] = []
        self._seen: list[WorkerConnection] = []
        self.server = ChannelServer(folder / "talk", self._on_message, segments=Segments(), detail=self.lines.append)

    def _on_message(self, connection: WorkerConnection, message: WorkerMessage) -> None:
        if connection not in self._seen:
            self._seen.append(connection)
        self.heard.append((self._seen.index(connection), message))

    async def runs(self, folder: Path, script: str, *, fresh: bool) -> str:
        """Run a worker to its end; its stdout."""
        path = folder / "script.py"
        path.write_text(script)
        loop = asyncio.get_running_loop()
        loop.add_reader(self.server.fileno(), self.server.serve)
        try:
            more = {VARIABLE: self.server.path, "RANK": "0", "LOCAL_RANK": "0", "ELASTIC_GENERATION": "1"}
            environ = environment(**more, PYTHONPATH=str(ROOT), WORLD_SIZE="1")
            out = await asyncio.to_thread(_python if fresh else _forked, path, environ)
            self.server.catch_up()
        finally:
            loop.remove_reader(self.server.fileno())
            self.server.close()
        return out


def _python(path: Path, environ: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, path], env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S
    ).stdout


def _forked(path: Path, environ: dict[str, str]) -> str:
    process = Forked([str(path)], environ, errors=2)
    try:
        out = process.output(LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    return out


def run(folder: Path, script: str, *, fresh: bool = False) -> tuple[Agent, str]:
    """Run a worker that finds torch loaded, or a `fresh` python."""
    agent = Agent(folder)
    return agent, asyncio.run(agent.runs(folder, script, fresh=fresh))


def test_ours_looks_like_torchs_and_connects_nothing(tmp_path: Path) -> None:
    agent, out = run(tmp_path, LOOKS, fresh=True)
    found: dict[str, Any] = json.loads(out)
    assert found.pop("before") is False, "torch was not loaded yet: nothing was done"
    assert found.pop("library") is False
    assert found.pop("name") == ["torch.distributed.distributed_c10d", "init_process_group", True]
    assert set(found.values()) == {True}, found
    assert agent.heard == []


def test_a_script_that_does_not_know_us_says_once_that_it_waits_and_that_its_group_stands_and_hangs_up(
    tmp_path: Path,
) -> None:
    agent, _ = run(tmp_path, GROUPS.format(aware=False))
    hello, joining, formed = (message for _, message in agent.heard)
    assert isinstance(hello, WorkerHello)
    assert isinstance(joining, JoiningGroup)
    assert joining == JoiningGroup("the other workers", at=joining.at)
    assert isinstance(formed, GroupFormed)
    assert formed.at > joining.at > 0
    assert hello.stacks_signal == 0
    assert agent.lines == []


def test_a_group_that_the_script_ends_is_taken_apart_by_nobody(tmp_path: Path) -> None:
    """Its threads live on. To take it apart can hang where a DDP model is the last to hold it."""
    _, out = run(tmp_path, ENDS)
    alone, watched = map(int, out.split())
    assert alone < 0, "left alone it ends its threads"
    assert watched == 0


def test_a_script_may_do_with_its_environment_what_it_likes_before_it_makes_its_group(tmp_path: Path) -> None:
    agent, _ = run(tmp_path, CLEARS)
    assert [type(message).__name__ for _, message in agent.heard] == ["WorkerHello", "JoiningGroup", "GroupFormed"]


def test_who_comes_before_rank_0_waits_until_it_listens_and_is_not_refused(tmp_path: Path) -> None:
    """torch's client says when it is refused; rank 0 begins to load torch when rank 1 has, and is about to connect."""
    script = tmp_path / "meets.py"
    script.write_text(MEETS)
    agent = Agent(tmp_path)
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1]), "WORLD_SIZE": "2"}
        more = {VARIABLE: agent.server.path, "PYTHONPATH": str(ROOT), **meet}
        environs = [environment(**more, RANK=rank, LOCAL_RANK=rank) for rank in ("0", "1")]
        with (tmp_path / "errors").open("w+") as errors:
            early = Forked([str(script)], environs[1], errors=errors.fileno())
            try:
                assert early.stdout.readline() == "connects\n"
                late = subprocess.run(
                    [sys.executable, script],
                    env=environs[0],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=LIMIT_S,
                )
                assert late.stderr == ""
                assert early.wait(LIMIT_S) == 0
            finally:
                early.kill()
            errors.seek(0)
            assert errors.read() == ""
    agent.server.close()


def test_a_script_that_uses_the_library_keeps_its_one_connection(tmp_path: Path) -> None:
    agent, _ = run(tmp_path, GROUPS.format(aware=True))
    assert {connection for connection, _ in agent.heard} == {0}
    assert [type(message).__name__ for _, message in agent.heard] == [
        "WorkerHello",
        "Progress",
        "GroupFormed",
        "Progress",
    ]
    assert agent.lines == []


def test_a_script_that_uses_the_library_and_calls_torch_itself_says_over_its_connection_that_it_waits(
    tmp_path: Path,
) -> None:
    agent, _ = run(tmp_path, AWARE)
    assert {connection for connection, _ in agent.heard} == {0}
    assert [type(message).__name__ for _, message in agent.heard] == [
        "WorkerHello",
        "Progress",
        "JoiningGroup",
        "GroupFormed",
    ]


def test_a_worker_that_is_to_have_torch_as_it_is_says_nothing(tmp_path: Path) -> None:
    agent, _ = run(tmp_path, f"import os\nos.environ['ELASTIC_NO_TORCH_PATCH'] = '1'\n{CLEARS}")
    assert agent.heard == []


def test_without_an_agent_there_is_nothing_to_install(tmp_path: Path) -> None:
    from launcher.nursery import torch_patch

    assert VARIABLE not in os.environ
    assert torch_patch.install(lambda: None) is False
