"""A Docker engine, images that hold nothing but one program or nothing at all, and networks of their own.

No image is pulled. etcd's is its static binary and nothing else. A node's is empty: python, the project and the
system's libraries are the host's own, mounted read-only. What a run that was killed left behind is removed by the next.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker  # type: ignore[import-untyped, unused-ignore]
from docker.errors import APIError  # type: ignore[import-untyped, unused-ignore]
from docker.models.containers import Container  # type: ignore[import-untyped, unused-ignore]
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from elastic.store.embedded import find_etcd

if TYPE_CHECKING:
    from docker import DockerClient

testcontainers_config.ryuk_disabled = True  # Its image cannot be pulled where there is no registry.

ETCD_IMAGE, NODE_IMAGE = "elastic-launch-etcd", "elastic-launch-node"
OWNER = "elastic-launch.owner"
"""A label: the process that made this container or network."""
ROOT = Path(__file__).parents[2]
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc")
SUBNET = "10.214.{}"
NETWORK_TRIES = 20


@functools.cache
def missing() -> str:
    """Why there can be no containers here, "" if there can."""
    if os.geteuid() != 0:
        return "faults of a host need root"
    for command in ("docker", "nsenter", "iptables"):
        if shutil.which(command) is None:
            return f"there is no {command} command (Debian: docker.io, util-linux, iptables)"
    asked = subprocess.run(("docker", "version"), capture_output=True, text=True)  # A client would leave a socket open.
    return f"no Docker engine answers: {asked.stderr.strip()}" if asked.returncode else ""


@functools.cache
def client() -> DockerClient:
    """The engine."""
    return docker.from_env()


@functools.cache
def images() -> None:
    """Build both images. Nothing is pulled for them."""
    _build(ETCD_IMAGE, "FROM scratch\nCOPY etcd /etcd\n", Path(find_etcd()))
    _build(NODE_IMAGE, "FROM scratch\nWORKDIR /tmp\n")


def _build(tag: str, dockerfile: str, etcd: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_text(dockerfile)
        if etcd is not None:
            shutil.copy(etcd, Path(folder, "etcd"))
        client().images.build(path=folder, tag=tag, rm=True)


def sweep() -> None:
    """Remove what was made by processes that are gone."""
    for container in client().containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
        if not _lives(container.labels[OWNER]):
            with contextlib.suppress(APIError):  # Another run sweeps, too.
                container.remove(force=True)
    for network in client().networks.list(filters={"label": OWNER}):
        if not _lives(network.attrs["Labels"][OWNER]):
            with contextlib.suppress(APIError):
                network.remove()


def _lives(owner: str) -> bool:
    return Path("/proc", owner).exists()


@contextlib.contextmanager
def network() -> Iterator[tuple[Network, str]]:
    """A network of its own, and the first three numbers of its addresses."""
    for _ in range(NETWORK_TRIES):
        prefix = SUBNET.format(secrets.randbelow(256))
        pool = docker.types.IPAMPool(subnet=f"{prefix}.0/24")
        wishes = {"ipam": docker.types.IPAMConfig(pool_configs=[pool]), "labels": {OWNER: str(os.getpid())}}
        made = Network(docker_network_kw=wishes)
        try:
            made.create()
        except APIError as error:
            if "overlap" not in str(error):
                raise
            continue
        try:
            yield made, prefix
        finally:
            made.remove()
        return
    raise RuntimeError(f"none of {NETWORK_TRIES} networks like {prefix}.0/24 is free")


def container(
    image: str,
    name: str,
    address: str,
    on: Network,
    command: list[str],
    mounted: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    tmpfs: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **wishes: Any,
) -> Container:
    """Start one; it has this name and address in the network. `mounted`: paths and "ro" or "rw", the same inside."""
    endpoint = client().api.create_endpoint_config(ipv4_address=address, aliases=[name])
    made = DockerContainer(image).with_command(command)
    for path, mode in mounted.items():
        made.with_volume_mapping(path, path, mode)
    made.env.update(environment or {})
    made.tmpfs.update(tmpfs or {})
    made.with_kwargs(
        hostname=name,
        network=on.name,
        networking_config={on.name: endpoint},
        labels={**(labels or {}), OWNER: str(os.getpid())},
        **wishes,
    )
    made.start()
    return made.get_wrapped_container()


def mounts(shared: Path) -> dict[str, str]:
    """What a node sees of this machine: programs and the project, read-only; `shared` is the storage of all nodes."""
    seen = {path: "ro" for path in (*SYSTEM, str(ROOT), sys.prefix, sys.base_prefix) if Path(path).exists()}
    return {**seen, str(shared): "rw"}
