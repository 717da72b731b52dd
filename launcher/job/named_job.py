"""What every subcommand of `elastic-ctl` uses: the selected job, its store, and the output."""

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
from launcher.config.argv import named_deprecations, named_values
from launcher.config.flags import BY_NAME, JOB_FLAGS, STORE_FLAGS
from launcher.config.readers import StoreEndpoints
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import print_result

WHO: Final = "elastic-ctl"
NO_SUCH_JOB = 1


@dataclass(frozen=True, slots=True)
class NamedJob:
    """The selected job, and its store."""

    job_id: str
    keys: JobKeys
    store: Store
    servers: tuple[str, ...]

    async def view(self, *, everything: bool = False) -> StoreView:
        """Read all documents of the job at one revision. Raises `NoSuchJob` if there is none, and `OtherSchema`.

        `everything`: accept a job of which only the history remains.
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
        """Raise `OtherSchema` if another version created the job, so that the view has none of its documents."""
        if view.schema is not None:
            raise OtherSchema(other_schema(self.job_id, view.schema))

    def missing(self) -> NoSuchJob:
        """Return the error for a job that is not in the store."""
        where = f"at {', '.join(self.servers)} below {self.keys.root}"
        return NoSuchJob(f"no job {self.job_id} {where}; elastic-ctl list shows all jobs")


class NoSuchJob(ElasticError):
    """The store has no job with this ID."""

    exit_code = NO_SUCH_JOB


class OtherSchema(ElasticError):
    """Another version created the job, so that none of its documents can be read."""

    exit_code = NO_SUCH_JOB


def other_schema(job_id: str, schema: int) -> str:
    """Return the error message for a job whose schema this program does not read, with the fix."""
    return f"job {job_id} {schemas_text(schema, WHO)}; use the {WHO} of the job's version"


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand. `arguments` adds its own flags to those of the job; `run` returns the exit code.

    A subcommand with `alone` instead of `run` needs no job, and opens a store itself if one is given. `flags` are the
    flags of `elastic-launch` that it accepts.
    """

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[NamedJob, argparse.Namespace], Awaitable[int]] | None = None
    alone: Callable[[argparse.Namespace, Mapping[str, str]], Awaitable[int]] | None = None
    flags: tuple[str, ...] = JOB_FLAGS
    examples: tuple[tuple[str, str], ...] = ()


def named_job(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[StoreEndpoints, str, str]:
    """Return servers, job ID and key prefix from the flags (by name) and the environment, as `elastic-launch` does.

    Inside a worker the job is the worker's. Raises `ConfigError` that names what is missing or wrong.
    """
    given = named_values(asked, environ, JOB_FLAGS)
    _need("elastic_server", given, "no etcd given")
    _need("job_id", given, "no job ID given")
    return given["servers"], given["job_id"], given["key_prefix"]


def named_store(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[StoreEndpoints, str]:
    """Return servers and key prefix in the same way, for subcommands that read all jobs."""
    given = named_values(asked, environ, STORE_FLAGS)
    _need("elastic_server", given, "no etcd given")
    return given["servers"], given["key_prefix"]


def open_store(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> Store:
    """Open a client of the selected store, and print warnings about its files. Raises `ConfigError`."""
    way, warnings = store_access.read_access(named_values(asked, environ, STORE_FLAGS), environ)
    for line in (*warnings, *named_deprecations(asked, environ, JOB_FLAGS)):
        write_stderr_line(f"warning: {line}", WHO)
    return way.open()


@asynccontextmanager
async def opened_job(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> AsyncIterator[NamedJob]:
    """Yield the selected job, with a store that is closed at the end. Raises `ConfigError`."""
    servers, job_id, key_prefix = named_job(asked, environ)
    store = open_store(asked, environ)
    try:
        yield NamedJob(job_id, JobKeys(job_id, key_prefix), store, servers.endpoints)
    finally:
        await store.close()


def _need(name: str, given: Mapping[str, Any], missing: str) -> None:
    flag = BY_NAME[name]
    if not given.get(flag.field):
        raise ConfigError(f"{missing}; add {flag.option} {flag.metavar.partition(',')[0]}, or set {flag.variables[0]}")


def write(lines: Iterable[str]) -> None:
    """Write lines to stdout."""
    print_result("".join(f"{line}\n" for line in lines))
