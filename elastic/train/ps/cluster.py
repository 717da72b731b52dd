"""A process's place in a parameter-server job, and where the others are now."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import ConfigError

SECRET = "ELASTIC_PS_SECRET"
"""The variable with the secret of servers and workers. The launcher sets it; by hand the user may."""
SECRET_LENGTH_MIN = 32

log = logging.getLogger("elastic.train.ps")


class TaskEnvironment(Protocol):
    """What the library asks of the environment; `elastic.env()` gives one.

    `trainers` is the number of workers that the first synchronous step waits for. `roster_file` is kept up to date by
    the launcher; "" without one.
    """

    @property
    def role(self) -> str:
        """`server`, `worker` or `heter`."""

    @property
    def index(self) -> int:
        """Counts from 0 within the role."""

    @property
    def servers(self) -> tuple[str, ...]:
        """Every server's host:port by index, "" for one that is not there yet."""

    @property
    def trainers(self) -> int:
        """How many workers there are at first."""

    @property
    def current(self) -> str:
        """This process's own host:port."""

    @property
    def job_id(self) -> str:
        """The job, the same for everybody in it."""

    @property
    def checkpoint_dir(self) -> str:
        """The job's folder for what it keeps."""

    @property
    def roster_file(self) -> str:
        """Where the launcher writes who is where."""


class ListedWorker(msgspec.Struct, frozen=True):
    """A worker in the roster."""

    index: int


class ClusterSpecFile(msgspec.Struct, frozen=True):
    """What the launcher's file says, as far as it concerns us."""

    servers: tuple[str, ...]
    workers: tuple[ListedWorker, ...] = ()
    heters: tuple[ListedWorker, ...] = ()


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


def servers(place: TaskEnvironment) -> tuple[str, ...]:
    """Every server by index. `ConfigError` if none is named."""
    found = place.servers
    if not found and (now := cluster_spec(place.roster_file)):
        found = now.servers
    if not found:
        raise ConfigError("no parameter servers are named; set PADDLE_PSERVER_IPS to their hosts, or use --server_num")
    return found


def workers(place: TaskEnvironment) -> int:
    """How many workers there are now."""
    now = cluster_spec(place.roster_file)
    return len(now.workers) + len(now.heters) if now else place.trainers
