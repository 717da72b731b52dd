"""`elastic-ctl report`: a report of a job as one HTML file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from elastic._disk.replace import replace_file
from elastic.errors import ConfigError
from launcher.job.history import read_report
from launcher.job.named_job import NamedJob, Subcommand, write
from launcher.job.overview import overview_of
from launcher.system.stdout import write_stdout
from launcher.web.html import document
from launcher.web.page_data import sections

STDOUT: Final = "-"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="the file to write (default: JOB_ID.html; - is stdout)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    if asked.out == STDOUT:
        write_stdout(await report(job))
        return 0
    path = Path(asked.out or f"{job.job_id}.html")
    if not asked.force:
        _check_absent(path)
    html = await report(job)
    _keep(path, html)
    write([f"The report of job {job.job_id} is {path} ({len(html) / 1000:.0f} kB)"])
    return 0


async def report(job: NamedJob) -> bytes:
    """Return the report of a job as HTML. Raises `NoSuchJob`, `StoreError`."""
    now = time.time()
    found = await overview_of(job, await job.view(everything=True))
    told, events, points = await read_report(job.store, job.keys, now)
    return document({"job": job.job_id}, sections(found, told, points, events, now)).html


def _check_absent(path: Path) -> None:
    """Raise `ConfigError` if the file exists, before anything is read from etcd."""
    with _write_errors(path):
        there = path.exists()
    if there:
        raise ConfigError(f"{path} already exists; add --force to replace it, or name another file with --out")


def _keep(path: Path, html: bytes) -> None:
    """Replace the file atomically. A device or a pipe is written to instead."""
    with _write_errors(path):
        if path.exists() and not path.is_file():
            path.write_bytes(html)
        else:
            replace_file(path, html)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file with --out") from error


COMMAND: Final = Subcommand(
    "report",
    "write a report of a job to one HTML file",
    _arguments,
    _run,
    examples=(
        ("Write j1.html", "elastic-ctl report --job-id j1"),
        ("Replace a file", "elastic-ctl report --out report.html --force"),
    ),
)
