"""A process's place in a parameter-server job, and where the others are now."""

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
"""The variable with the secret of servers and workers. The launcher sets it; by hand the user may."""
SECRET_LENGTH_MIN = 32

log = logging.getLogger("elastic.train.ps")


class ClusterSpecFile(msgspec.Struct, frozen=True):
    """What the launcher's file says, as far as it concerns us: where each server is, and how many workers there are."""

    servers: tuple[str, ...]
    workers: tuple[Any, ...] = ()
    heters: tuple[Any, ...] = ()


def cluster_spec(path: str) -> ClusterSpecFile | None:
    """Read the launcher's file. None if there is none, or it cannot be read: what was known before counts then."""
    if not path:
        return None
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ClusterSpecFile)
    except (OSError, *UNREADABLE) as error:
        log.warning("the roster %s cannot be read: %s", path, error)
        return None


def secret(environ: Mapping[str, str]) -> bytes:
    """The secret that servers and workers prove to each other, b"" without one. `ConfigError` for a short one."""
    text = environ.get(SECRET, "")
    if 0 < len(text) < SECRET_LENGTH_MIN:
        raise ConfigError(
            f"{SECRET} is shorter than {SECRET_LENGTH_MIN} characters; make one with: openssl rand -hex 16"
        )
    return text.encode()


def servers(place: ProcessEnvironment) -> tuple[str, ...]:
    """Every server by index. `ConfigError` if none is named."""
    found = place.servers
    if not found and (now := cluster_spec(place.roster_file)):
        found = now.servers
    if not found:
        raise ConfigError("no parameter servers are named; set PADDLE_PSERVER_IPS to their hosts, or use --server_num")
    return found


def tell_agent(message: RestoreDone | Serving) -> None:
    """Tell the agent of this node how far this process is, if there is one."""
    client = report.end() or channel_client(os.environ)  # A server has no channel for its progress.
    if client is not None:
        client.send(message)


def workers(place: ProcessEnvironment) -> int:
    """How many workers there are now."""
    now = cluster_spec(place.roster_file)
    return len(now.workers) + len(now.heters) if now else place.trainers
