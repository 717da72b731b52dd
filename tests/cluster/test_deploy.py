"""The command lines of deploy/ as containers: three members of etcd and two nodes, as Kubernetes would start them.

The image cannot be pulled where there is no registry: its ENTRYPOINT runs in an empty one, with this machine's python.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped, unused-ignore]
import pytest
from docker.models.containers import Container  # type: ignore[import-untyped, unused-ignore]
from testcontainers.core.network import Network

from tests.cluster import engine
from tests.cluster.machines import HOLDER
from tests.support import kustomize
from tests.support.deploy_files import FIELDS, entrypoint, pod_of
from tests.support.kustomize import ROOT, Thing, one

REASON = engine.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

LIMIT_S = 90.0
NO_DNS = "127.0.0.1"
"""What the engine does not know is refused at once, instead of asked where nobody answers."""
PROJECT = f"chaos-{os.getpid()}"
SCRIPT = """
import fcntl, os, runpy, sys  # torch is the example's.
import elastic

gate, commit = sys.argv.pop(1), elastic.State.commit

def wait_and_commit(state, **how):
    if os.environ["WORLD_SIZE"] == "1":
        with open(gate) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    commit(state, **how)

elastic.State.commit = wait_and_commit
runpy.run_module("elastic.examples.digits", run_name="__main__", alter_sys=True)
"""
"""The manifest's script, of which a world of one waits for the test: the other node comes back before all is done."""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Feed:
    """What a container says, over all its starts."""

    def __init__(self, container: Container) -> None:
        self.container = container

    def said(self) -> str:
        return str(self.container.logs().decode(errors="replace"))

    async def says(self, words: str) -> None:
        """Wait until it has said this. Fails at once when it has ended without it."""
        async with asyncio.timeout(LIMIT_S):
            while words not in (said := self.said()):
                self.container.reload()
                assert self.container.status == "running", f"{self.container.name} never said {words!r}:\n{said}"
                await asyncio.sleep(0.1)  # Its log tells nobody.

    async def ends(self) -> int:
        """Wait for its exit code."""
        return int((await asyncio.to_thread(self.container.wait, timeout=LIMIT_S))["StatusCode"])


def secured(pod: Thing, container: Thing) -> dict[str, Any]:
    """What the manifest's securityContext is to an engine."""
    user, own = pod["securityContext"], container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    return {
        "user": f"{user['runAsUser']}:{user['runAsGroup']}",
        "cap_drop": own["capabilities"]["drop"],
        "security_opt": ["no-new-privileges"],
        "read_only": own.get("readOnlyRootFilesystem", False),
    }


def member(things: list[Thing], number: int, prefix: str, on: Network) -> Container:
    """A pod of the StatefulSet."""
    pod = pod_of(one(things, "StatefulSet", "etcd"))
    (container,) = pod["containers"]
    words = kustomize.command(container, kustomize.environment(container, {"metadata.name": f"etcd-{number}"}))
    (data,) = (mount["mountPath"] for mount in container["volumeMounts"])
    return engine.container(
        engine.ETCD_IMAGE, f"etcd-{number}.etcd", f"{prefix}.{number + 2}", on, [f"/{words[0]}", *words[1:]], {},
        tmpfs={data: "uid=1000"}, **secured(pod, container),
    )  # fmt: skip


def node(things: list[Thing], number: int, prefix: str, on: Network, shared: Path) -> Feed:
    """A pod of the Job, with the image's ENTRYPOINT in front of its words."""
    pod = pod_of(one(things, "Job", "train"))
    (container,) = pod["containers"]
    address = f"{prefix}.{number + 11}"
    environ = kustomize.environment(container, FIELDS | {"metadata.name": f"train-{number}", "status.podIP": address})
    words = kustomize.command(container, environ)
    script = words.index("-m")
    assert words[script + 1] == "elastic.examples.digits"
    command = [*entrypoint(), *words[:script], "/shared/held.py", "/shared/gate", "--epochs=12", "--step_time=0.01"]
    environ |= {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/shared"}
    environ |= {"TMPDIR": "/shared", "OMP_NUM_THREADS": "1", "ELASTIC_NP": "2", "ELASTIC_JOIN_WINDOW": "1"}
    made = engine.container(
        engine.NODE_IMAGE, f"train-{number}", address, on, command, engine.mounts(shared),
        environment=environ, shm_size="256m", dns=[NO_DNS],
        mounts=[docker.types.Mount("/shared", str(shared), type="bind")], **secured(pod, container),
    )  # fmt: skip
    return Feed(made)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[list[Container], list[Feed]]]:
    """Members and nodes, in one network."""
    engine.sweep()
    engine.images()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "held.py").write_text(SCRIPT)
    things = kustomize.rendered(kustomize.KUBERNETES / "overlays" / "cpu")
    with engine.network() as (on, prefix):
        members: list[Container] = []
        nodes: list[Feed] = []
        try:
            members += [member(things, number, prefix, on) for number in range(3)]
            nodes += [node(things, number, prefix, on, shared) for number in range(2)]
            yield members, nodes
        finally:
            for container in (*members, *(one.container for one in nodes)):
                container.remove(force=True)


def healthy(container: Container) -> set[tuple[str, int]]:
    """What the probes of the manifest hear."""
    things = kustomize.rendered(kustomize.KUBERNETES / "overlays" / "cpu")
    (spec,) = pod_of(one(things, "StatefulSet", "etcd"))["containers"]
    container.reload()
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    heard = set()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = spec[probe]["httpGet"]["path"]
        with DIRECT.open(f"http://{network['IPAddress']}:2381{path}", timeout=5) as answer:
            heard.add((json.loads(answer.read())["health"], answer.status))
    return heard


def test_the_manifests_train_a_stopped_pod_drains_and_what_was_lost_comes_back(
    cluster: tuple[list[Container], list[Feed]], tmp_path: Path
) -> None:
    members, (first, second) = cluster

    async def story() -> None:
        with (tmp_path / "shared" / "gate").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            await asyncio.gather(*(each.says("generation 1: 2 nodes") for each in (first, second)))
            stays, goes = (first, second) if "(rank 0)" in first.said() else (second, first)
            await stays.says("step 50 ")
            assert healthy(members[0]) == {("true", 200)}

            # As the kubelet does it: SIGTERM to process 1, which is tini.
            await asyncio.to_thread(goes.container.stop, timeout=150)
            assert await goes.ends() == 143
            await stays.says("generation 2: 1 node")
            assert "; workers exiting for a planned change" in stays.said()
            await stays.says("resumed at step ")

            goes.container.start()
            await stays.says("joins: stopping this node's workers")
        await stays.says("generation 3: 2 nodes")
        assert [await each.ends() for each in (first, second)] == [0, 0]
        assert "test accuracy 9" in stays.said()

    asyncio.run(story())


def chaos(*words: str) -> subprocess.CompletedProcess[str]:
    """Run compose's chaos.sh to its end."""
    return subprocess.run(
        [ROOT / "deploy" / "compose" / "chaos.sh", "--every", "0", *words],
        env={**os.environ, "COMPOSE_PROJECT_NAME": PROJECT}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_chaos_strikes_containers_of_the_project_starts_them_again_and_stops_when_the_job_has_ended() -> None:
    engine.sweep()
    engine.images()
    started: list[Container] = []

    def service(name: str, project: str, number: int, *command: str) -> Container:
        labels = {"com.docker.compose.project": project, "com.docker.compose.service": name}
        container = engine.container(
            engine.NODE_IMAGE, f"{name}-{number}", f"{prefix}.{number}", on, list(command) or HOLDER,
            dict.fromkeys(engine.SYSTEM, "ro"), labels=labels, init=True,
        )  # fmt: skip
        started.append(container)
        return container

    def starts(container: Container) -> str:
        container.reload()
        assert container.status == "running"
        return str(container.attrs["State"]["StartedAt"])

    with engine.network() as (on, prefix):
        try:
            node, etcd = service("node", PROJECT, 11), service("etcd-0", PROJECT, 12)
            others = service("node", "another", 13)
            before = [starts(each) for each in (node, etcd, others)]
            for fault, said, mended in (
                ("pause", "pausing", "resumed {}"),
                ("kill", "killing", "started {} again"),
                ("stop", "stopping", "started {} again"),
            ):
                done = chaos("--rounds", "1", "--faults", fault)
                assert (done.returncode, done.stderr) == (0, "")
                assert [line.partition(" ")[2] for line in done.stdout.splitlines()] == [
                    f"{said} {node.name}",
                    mended.format(node.name),
                ]
            assert chaos("--rounds", "1", "--faults", "etcd").returncode == 0
            after = [starts(each) for each in (node, etcd, others)]
            assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]

            service("node", PROJECT, 14, "/bin/true").wait()
            assert "so the job has ended" in chaos().stdout
            wrong = chaos("--faults", "fire")
            assert wrong.returncode == 2
            assert wrong.stderr == "chaos.sh: unknown fault fire; choose kill, stop, pause or etcd\n"
        finally:
            for container in started:
                container.remove(force=True)
