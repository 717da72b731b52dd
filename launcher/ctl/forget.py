"""`elastic-ctl forget`: delete all that stands in the store about a job that nobody works on."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from elastic._text import counted, shortened
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, Delete, KeyRange
from elastic.errors import ConfigError, ElasticError
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import print_result
from launcher.text.sanitize import sanitize_line

NAMED_MAX: Final = 8
"""Members that are named; of the others it says how many there are."""
TRIES_MAX: Final = 3

_STILL: Final = (
    "Job {} has not ended: it could go on when elastic-launch is started again. Nodes that vanished without a word may "
    "still run for a while."
)


class JobActive(ElasticError):
    """Somebody works on the job."""

    exit_code = 1


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")


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
            write([f"Job {job.job_id} is forgotten: {_keys_text(job.keys, stored)}. Its logs and checkpoints stay."])
            return 0
    raise JobActive(f"job {job.job_id} changes all the time, so somebody works on it; nothing was deleted, try again")


async def _stored(job: NamedJob) -> dict[str, int]:
    """The revision of every key of the job. No document is read: a job is forgotten whatever they contain."""
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
        f"job {job.job_id} has {counted(len(nodes), 'member')} ({named}), so nothing was "
        "deleted; stop it first: elastic-ctl stop"
    )


def _ask(job: NamedJob, stored: Collection[str]) -> None:
    """Have a person say yes. Raises `ConfigError` without a terminal, and `JobActive` at any other answer."""
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise ConfigError(f"forget deletes all that etcd knows of job {job.job_id}; without a terminal, add --yes")
    if job.keys.verdict not in stored:
        print_result(f"{_STILL.format(job.job_id)}\n")
    print_result(f"Delete {_keys_text(job.keys, stored)} of job {job.job_id} below {job.keys.root}? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise JobActive(f"job {job.job_id} stays as it is")


def _keys_text(keys: JobKeys, found: Iterable[str]) -> str:
    """What stands under these keys, in words: "verdict, spec, 12 events (17 keys)"."""
    counts = Counter(key.removeprefix(keys.root).partition("/")[0] for key in found)
    words = [name if count == 1 else f"{count} {name}" for name, count in sorted(counts.items())]
    return f"{', '.join(words)} ({counted(counts.total(), 'key')})"


COMMAND: Final = Subcommand(
    "forget", "delete all that etcd knows of a job that nobody works on any more", _arguments, _run
)
