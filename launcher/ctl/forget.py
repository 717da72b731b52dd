"""`elastic-ctl forget`: delete everything that etcd has of a job without nodes."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from typing import Final

from elastic._text import counted, shortened
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, Delete, KeyRange
from elastic.errors import ElasticError
from launcher.job import common_flags
from launcher.job.confirmation import confirm
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.system.descriptors import write_stderr_line
from launcher.text.sanitize import sanitize_line

NAMED_MAX: Final = 8
"""How many nodes the message names; it counts the others."""
TRIES_MAX: Final = 3

_STILL: Final = (
    "Job {} has not ended: elastic-launch would resume it. Nodes that disappeared without deregistering may still run "
    "for a while."
)


class JobActive(ElasticError):
    """The job is in use, so its record cannot be deleted."""

    exit_code = 1


def _arguments(parser: argparse.ArgumentParser) -> None:
    common_flags.add_yes(parser)


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    stored = await _stored(job)
    _check(job, stored)
    if not asked.yes:
        _ask(job, stored)
    elif job.keys.verdict not in stored:
        write_stderr_line(f"warning: {_STILL.format(job.job_id)}", WHO)
    for _ in range(TRIES_MAX):
        same = Compare.modified(job.keys.incarnation, stored.get(job.keys.incarnation, 0))
        stored = await _stored(job)
        _check(job, stored)
        guards = (Compare.empty(job.keys.members), same)
        if (await job.store.txn(guards, (Delete(KeyRange.prefix(job.keys.root)),))).succeeded:
            what = _keys_text(job.keys, stored)
            write([f"Deleted the record of job {job.job_id}: {what}. Its logs and checkpoints stay."])
            return 0
    raise JobActive(f"job {job.job_id} keeps changing, so it is in use; nothing was deleted, try again")


async def _stored(job: NamedJob) -> dict[str, int]:
    """Read the revision of every key of the job. No document is read, so damaged ones can be deleted, too."""
    listing = await job.store.list(KeyRange.prefix(job.keys.root), keys_only=True)
    if not listing.entries:
        raise job.missing()
    return {entry.key: entry.mod_revision for entry in listing.entries}


def _check(job: NamedJob, stored: Iterable[str]) -> None:
    members = job.keys.members
    nodes = [key.removeprefix(members) for key in stored if key.startswith(members)]
    if not nodes:
        return
    named = shortened([*map(sanitize_line, nodes)], NAMED_MAX)
    raise JobActive(
        f"job {job.job_id} has {counted(len(nodes), 'registered node')} ({named}), so nothing was "
        "deleted; stop it first: elastic-ctl stop"
    )


def _ask(job: NamedJob, stored: Collection[str]) -> None:
    """Ask whether to delete the record. Raises `ConfigError` without a terminal, and `NotConfirmed`."""
    warning = f"{_STILL.format(job.job_id)}\n" if job.keys.verdict not in stored else ""
    confirm(
        f"{warning}Delete the record of job {job.job_id}: {_keys_text(job.keys, stored)} below {job.keys.root}?",
        f"nothing of job {job.job_id} was deleted",
        deletes=f"forget deletes all that etcd knows of job {job.job_id}",
    )


def _keys_text(keys: JobKeys, found: Iterable[str]) -> str:
    """Describe these keys: "17 keys in etcd (12 events)"."""
    all_keys = list(found)
    events = sum(key.startswith(keys.events) for key in all_keys)
    return f"{counted(len(all_keys), 'key')} in etcd ({counted(events, 'event')})"


COMMAND: Final = Subcommand(
    "forget",
    "delete the record of a job that has no nodes; its logs and checkpoints stay",
    _arguments,
    _run,
    examples=(
        ("Delete the record of the job, after a question", "elastic-ctl forget --job-id j1"),
        ("Delete it without a question", "elastic-ctl forget --job-id j1 --yes"),
    ),
)
