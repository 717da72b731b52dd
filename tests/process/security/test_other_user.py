"""Another user of the machine, without the secret, against every socket of a job whose etcd is closed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.store.etcd import EtcdOptions, EtcdStore
from launcher.config.store_access import SECRET
from tests.support.awaited_events import command_of
from tests.support.etcd_servers import SAFE_RELEASE, binary_of, free_ports, posing
from tests.support.job_harness import Job, Stage, story
from tests.support.listening_sockets import tcp_listeners, unix_listeners

ROOT = Path(__file__).parents[3]
OURS = secrets.token_hex(16)
HERE = "127.0.0.1"

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@dataclass(frozen=True)
class Spoils:
    """What the other user got: from each target the ways in which it answered as etcd does, and the open paths."""

    etcd: dict[str, list[str]]
    entered: list[str]


async def attacked(targets: list[str], paths: list[str]) -> Spoils:
    """Attack as another user, with nothing of ours in the environment."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.scripts.other_user_attack"),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    shown, _ = await process.communicate(json.dumps({"targets": targets, "paths": paths}).encode())
    assert process.returncode == 0
    return Spoils(**json.loads(shown))


def part_of(pid: int) -> str:
    """Which part of a job a process is."""
    command = command_of(pid)
    marks = {
        "writes ": "writer",
        "launcher.nursery.main": "nursery",
        "bin/etcd ": "etcd",
        "-m launcher --elastic-server": "agent",
        "-m launcher": "parent",
    }
    return next((part for mark, part in marks.items() if mark in command), "worker")


def kinds(pids: Iterable[int]) -> dict[str, set[str]]:
    """What each part of a job listens at, without the numbers and names that differ from job to job."""
    found: dict[str, set[str]] = {}
    for pid in pids:
        sockets = found.setdefault(part_of(pid), set())
        sockets.update(f"TCP {ip}" for ip, _ in tcp_listeners(pid))
        sockets.update(re.sub("-[0-9a-f]{32}$", "", Path(name).name) for name in unix_listeners(pid))
    return found


def targets_of(pid: int) -> list[str]:
    """Every socket of a process that anybody may connect to, as gRPC names it."""
    reached = {"0.0.0.0": HERE, "::": "[::1]"}
    ports = [f"{reached.get(ip, f'[{ip}]' if ':' in ip else ip)}:{port}" for ip, port in tcp_listeners(pid)]
    return ports + [f"unix-abstract:{name[1:]}" for name in unix_listeners(pid) if name.startswith("@")]


def paths_of(pid: int) -> list[str]:
    """The sockets that lie in folders, those folders, what etcd has there, and what /proc tells of a process."""
    sockets = [Path(name) for name in unix_listeners(pid) if not name.startswith("@")]
    folders = [folder for one in sockets for folder in (one.parent, Path(f"/proc/{pid}/cwd"))]
    files = [folder / name for folder in folders for name in ("log", "data", "endpoints.log")]
    about = [Path(f"/proc/{pid}/{name}") for name in ("environ", "mem", "fd", "root")]
    return [str(path) for path in (*sockets, *folders, *files, *about)]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may enter and list, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_no_socket_of_a_job_with_a_secret_answers_another_user_as_etcd_does(
    stage: Stage, open_folder: Path, version: str
) -> None:
    binary = binary_of(version)
    if binary is None:
        pytest.skip(f"there is no etcd {version} on this machine")
    path = f"{posing(stage.folder, SAFE_RELEASE, binary).parent}:{os.environ['PATH']}"
    (port,) = free_ports(1)

    async def told(job: Job) -> None:
        environ = {SECRET: OURS, "PATH": path, "TMPDIR": str(open_folder)}
        first = await job.node("--serve", f"{HERE}:{port}", "--local-nodes", "2", server=False, environ=environ)
        await job.world(1, 2)
        pids = first.processes()
        assert [command_of(pid).split()[0] for pid in pids if part_of(pid) == "etcd"] == [binary]
        assert kinds(pids) == {
            "parent": {f"TCP {HERE}"},
            "etcd": {"client:1", "peer:1"},
            "agent": {f"TCP {HERE}", "@elastic-passage", "talk"},
            "nursery": set(),
            "writer": set(),
            "worker": set(),
        }
        targets = [target for pid in pids for target in targets_of(pid)]
        assert len(targets) == 5, "the porter, and of each agent a port and the way to the porter"
        paths = [path for pid in pids for path in paths_of(pid)]
        spoils = await attacked([*targets, job.etcd.endpoint], [*paths, str(open_folder)])
        without_a_secret = set(spoils.etcd.pop(job.etcd.endpoint))
        assert {"Range", "Put", "/version", "/metrics", "/v3/kv/range"} <= without_a_secret, "the attack works"
        assert spoils == Spoils(etcd={target: [] for target in targets}, entered=[str(open_folder)])
        for worker in job.workers:
            await worker.exits(0)
        assert await first.exits() == 0

    stage.play(told)


@story
async def test_no_secret_of_a_job_is_in_the_command_line_of_any_of_its_processes(job: Job) -> None:
    (port,) = free_ports(1)
    server = f"{HERE}:{port}"
    first = await job.node("--serve", server, server=False, environ={SECRET: OURS})
    (worker,) = await job.world(1, 1)
    store = EtcdStore([server], options=EtcdOptions(secret=OURS))
    (entry,) = (await store.list(KeyRange.key(JobKeys(job.job_id).secret))).entries
    await store.close()
    of_links = json.loads(entry.value)
    pids = first.processes()
    assert {"parent", "agent", "nursery", "etcd"} <= {part_of(pid) for pid in pids}
    for pid in pids:
        shown = command_of(pid)
        assert OURS not in shown
        assert of_links not in shown
    await worker.exits(0)
    assert await first.exits() == 0
