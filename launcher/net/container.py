"""Containers: whether this is one, and whether others can reach its address."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from launcher.net.addresses import is_loopback
from launcher.net.endpoints import as_ip, parse_endpoint

DOCKER_BRIDGE = ipaddress.ip_network("172.17.0.0/16")
"""The network of docker's default bridge: an address in it is known on one machine alone."""
MARKS = (".dockerenv", "run/.containerenv")
"""Files that docker and podman put into every container."""
WORDS = ("/docker", "/kubepods", "/containerd", "/libpod", "/lxc")
"""Parts of the name of a container's control group."""


def in_container(root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container, by what docker, podman and others leave there."""
    if any((root / mark).exists() for mark in MARKS):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in WORDS)


def bridge_hint(host: str, servers: Sequence[str], *, inside: bool) -> str:
    """What to do about an address that only this machine knows; "" if there is nothing to do.

    `servers` are etcd's endpoints: with one of them on the same bridge, or on this machine, all is on this machine.
    """
    ip = as_ip(host)
    if not inside or ip is None or ip not in DOCKER_BRIDGE or not servers:
        return ""
    if not all(_elsewhere(parse_endpoint(server)[0]) for server in servers):
        return ""
    return (
        f"{host} is an address of docker's bridge, which other machines do not reach: start the container with "
        "--network host; ports published with -p LOW-HIGH:LOW-HIGH, with --host ADDRESS_OF_THE_MACHINE "
        "--port_range LOW:HIGH, do where workers use neither gloo nor NCCL"
    )


def _elsewhere(server: str) -> bool:
    ip = as_ip(server)
    return not is_loopback(server) and (ip is None or ip not in DOCKER_BRIDGE)
