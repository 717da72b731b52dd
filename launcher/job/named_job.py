"""What every subcommand of `elastic-ctl` works with: the job that was named, its store, and how it answers."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.text import schemas_text
from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from elastic.errors import ConfigError, ElasticError
from elastic.store.protocol import Store
from launcher.config import store_access
from launcher.config.argv import named_values
from launcher.config.flags import BY_NAME, JOB_FLAGS, STORE_FLAGS
from launcher.config.readers import StoreEndpoints
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import print_result

WHO: Final = "elastic-ctl"
NO_SUCH_JOB = 1


@dataclass(frozen=True, slots=True)
class NamedJob:
    """The job that was named, and its store."""

    job_id: str
    keys: JobKeys
    store: Store
    servers: tuple[str, ...]

    async def view(self, *, everything: bool = False) -> StoreView:
        """All documents of the job, at one revision. Raises `NoSuchJob` if there is none, and `OtherSchema`.

        `everything`: a job of which nothing but its history is left is one, too.
        """
        listing = await self.store.list(self.keys.everything[0])
        if not listing.entries and everything:
            listing = await self.store.list(KeyRange.prefix(self.keys.root), keys_only=True)
        if not listing.entries:
            raise self.missing()
        entries = {entry.key: entry for entry in listing.entries}
        view = ViewReader(self.keys).read(entries, listing.revision, complete=True)
        self.check_schema(view)
        return view

    def check_schema(self, view: StoreView) -> None:
        """Raise `OtherSchema` if the job is of another version, so that the view has none of its documents."""
        if view.schema is not None:
            raise OtherSchema(other_schema(self.job_id, view.schema))

    def missing(self) -> NoSuchJob:
        """The error to raise where the store has nothing of the job."""
        where = f"at {', '.join(self.servers)} below {self.keys.root}"
        return NoSuchJob(f"there is no job {self.job_id} {where}; elastic-ctl list shows the jobs that there are")


class NoSuchJob(ElasticError):
    """Nothing stands in the store under this job id."""

    exit_code = NO_SUCH_JOB


class OtherSchema(ElasticError):
    """The job is of another version of this project, so that none of its documents can be read."""

    exit_code = NO_SUCH_JOB


def other_schema(job_id: str, schema: int) -> str:
    """What to do about a job whose documents have another schema than those that this program reads."""
    return f"job {job_id} {schemas_text(schema, WHO)}; use the {WHO} of the job's version"


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand. `arguments` adds what it takes beside the flags of the job; `run` gives the exit code.

    One with `alone` instead of `run` needs no job, and opens the store itself if it is given one. `flags` are those of
    `elastic-launch` that it has.
    """

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[NamedJob, argparse.Namespace], Awaitable[int]] | None = None
    alone: Callable[[argparse.Namespace, Mapping[str, str]], Awaitable[int]] | None = None
    flags: tuple[str, ...] = JOB_FLAGS


def named_job(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[StoreEndpoints, str, str]:
    """Server, job id and key prefix, from the flags (by name) and the environment, as `elastic-launch` reads them.

    Inside a worker the job is the worker's. Raises `ConfigError` that names what is missing or wrong.
    """
    given = named_values(asked, environ, JOB_FLAGS)
    for name in ("elastic_server", "job_id"):
        _need(name, given, "which job?")
    return given["servers"], given["job_id"], given["key_prefix"]


def named_store(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[StoreEndpoints, str]:
    """Server and key prefix, in the same way, for what looks at all jobs."""
    given = named_values(asked, environ, STORE_FLAGS)
    _need("elastic_server", given, "which etcd?")
    return given["servers"], given["key_prefix"]


def open_store(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> Store:
    """A client of the store that was named; says a warning about files that look wrong. Raises `ConfigError`."""
    way, warnings = store_access.read_access(named_values(asked, environ, STORE_FLAGS), environ)
    for line in warnings:
        write_stderr_line(f"warning: {line}", WHO)
    return way.open()


@asynccontextmanager
async def opened_job(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> AsyncIterator[NamedJob]:
    """The job that was named, with a store that is closed at the end. Raises `ConfigError`."""
    servers, job_id, key_prefix = named_job(asked, environ)
    store = open_store(asked, environ)
    try:
        yield NamedJob(job_id, JobKeys(job_id, key_prefix), store, servers.endpoints)
    finally:
        await store.close()


def _need(name: str, given: Mapping[str, Any], question: str) -> None:
    flag = BY_NAME[name]
    if not given.get(flag.field):
        raise ConfigError(f"{question} add --{name} {flag.metavar.partition(',')[0]}, or set {flag.variables[0]}")


def write(lines: Iterable[str]) -> None:
    """Write lines to stdout."""
    print_result("".join(f"{line}\n" for line in lines))
