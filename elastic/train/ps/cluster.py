"""The place of a process in a parameter-server job, and the current addresses of the others."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from elastic._decode import UNREADABLE
from elastic.channel.client import channel_client
from elastic.channel.messages import RestoreDone, Serving
from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.train import report

SECRET = "ELASTIC_PS_SECRET"
"""The variable with the secret of servers and workers. The launcher sets it; by hand, the user may set it."""
SECRET_LENGTH_MIN = 32

log = logging.getLogger("elastic.train.ps")


class ClusterSpecFile(msgspec.Struct, frozen=True):
    """The cluster spec of the launcher: the address of each server, and the workers."""

    servers: tuple[str, ...]
    workers: tuple[Any, ...] = ()
    heters: tuple[Any, ...] = ()


def cluster_spec(path: str) -> ClusterSpecFile | None:
    """Read the cluster spec. None if there is none, or it cannot be read; the previous addresses remain valid."""
    if not path:
        return None
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ClusterSpecFile)
    except (OSError, *UNREADABLE) as error:
        log.warning("cannot read the cluster spec %s: %s", path, error)
        return None


def secret(environ: Mapping[str, str]) -> bytes:
    """Return the secret of servers and workers, b"" without one. Raises `ConfigError` for a short one."""
    text = environ.get(SECRET, "")
    if 0 < len(text) < SECRET_LENGTH_MIN:
        raise ConfigError(
            f"{SECRET} is shorter than {SECRET_LENGTH_MIN} characters; make one with: openssl rand -hex 16"
        )
    return text.encode()


def servers(place: ProcessEnvironment) -> tuple[str, ...]:
    """Return every server by index. Raises `ConfigError` if there is none."""
    addresses = place.servers
    if not addresses and (now := cluster_spec(place.roster_file)):
        addresses = now.servers
    if not addresses:
        raise ConfigError("there are no parameter servers; set PADDLE_PSERVER_IPS to their hosts, or use --server-num")
    return addresses


def tell_agent(message: RestoreDone | Serving) -> None:
    """Report the progress of this process to the agent of its node, if there is one."""
    client = report.end() or channel_client(os.environ)  # A server has no progress channel.
    if client is not None:
        client.send(message)


def workers(place: ProcessEnvironment) -> int:
    """Return the current number of workers."""
    now = cluster_spec(place.roster_file)
    return len(now.workers) + len(now.heters) if now else place.trainers
