"""`elastic-ctl logs`: what workers write, from the nodes that run them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from elastic.core.model import Verdict
from elastic.core.ps.model import Role
from elastic.core.text import log_name, process_name
from elastic.core.view import StoreView
from elastic.errors import ConfigError
from launcher.config import readers
from launcher.config.durations import FORMS, duration
from launcher.ctl.logs import all_ranks
from launcher.ctl.logs.follower import LogFollower
from launcher.ctl.logs.output import StreamOutput
from launcher.ctl.logs.previous import print_previous
from launcher.job import common_flags, process_location
from launcher.job.inspect_client import InspectError
from launcher.job.named_job import NamedJob, Subcommand, write
from launcher.job.watch import JobWatch
from launcher.system.stdout_watch import while_stdout_is_open
from launcher.text import failure_report
from launcher.text.sanitize import sanitize_line
from launcher.text.terminal_filter import RAW_HELP
from launcher.wire.inspect_messages import LINES_MAX

LINES: Final = 100
LINES_OF_ALL: Final = 10
"""Lines of each rank with `--all`."""
NOT_HERE: Final = 1


def since(text: str, now: Callable[[], float] = time.time) -> float:
    """Read a duration, or a time with its zone, and return how many seconds ago that is. Raises `ValueError`."""
    try:
        return duration(0)(text)
    except ValueError as error:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is neither a duration ({FORMS}) nor a time (2026-11-23T03:46:05Z)") from error
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; append Z if it is UTC")
    age_s = now() - at.timestamp()
    if age_s < 0:
        raise ValueError(f"{text!r} is in the future")
    return age_s


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rank", nargs="?", metavar="RANK", help="a rank; in a parameter-server job also server.0, heter.0"
    )
    parser.add_argument("--all", action="store_true", help="show the logs of all ranks, each line with its rank")
    common_flags.add_follow(parser, "show new output, too, across restarts, until the job ends")
    common_flags.add_lines(
        parser,
        LINES_MAX,
        None,
        f"show the last N lines (default: {LINES}; with --all {LINES_OF_ALL} of each rank; with --since all)",
    )
    parser.add_argument(
        "--since",
        type=readers.argument(since),
        metavar="DURATION|TIME",
        help="show only lines that were written within this time (5m) or after this time (2026-11-23T03:46:05Z)",
    )
    parser.add_argument("--previous", action="store_true", help="show the log of the generation before the newest one")
    parser.add_argument("--raw", action="store_true", help=RAW_HELP)


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    _check(asked)
    processes = [] if asked.all else [process_location.named(asked.rank)]
    async with JobWatch(job) as newest:
        if newest.view.verdict is not None:
            _print_ended(newest.view.verdict.value, newest.view, processes)
            return NOT_HERE
        if why := process_location.elsewhere(newest.view):
            raise InspectError(why)
        if not processes:
            return await _show_all(job, newest, asked)
        ((role, index),) = processes
        output = StreamOutput(raw=asked.raw)
        lines = _lines(asked, LINES)
        try:
            if asked.previous:
                await print_previous(job, newest.view, role, index, lines, output)
                return 0
            follower = LogFollower(job, newest, role, index, output, since_s=asked.since)
            if not asked.follow:
                await follower.print_once(lines)
                return 0
            return await while_stdout_is_open(follower.follow(lines))
        finally:
            output.close()


async def _show_all(job: NamedJob, newest: JobWatch, asked: argparse.Namespace) -> int:
    lines = _lines(asked, LINES_OF_ALL)
    if asked.follow:
        return await while_stdout_is_open(all_ranks.follow(job, newest, lines, asked.since, raw=asked.raw))
    return await all_ranks.print_once(job, newest, lines, asked.since, raw=asked.raw, previous=asked.previous)


def _check(asked: argparse.Namespace) -> None:
    """Raise `ConfigError` where the arguments contradict each other."""
    if asked.all == (asked.rank is not None):
        given = (
            "--all shows every rank; leave RANK out, or --all" if asked.all else "no worker named; add a RANK, or --all"
        )
        raise ConfigError(given)
    if asked.previous and asked.follow:
        raise ConfigError("--previous shows a log that has ended, and --follow one that grows; leave one of them out")
    if asked.previous and asked.since is not None:
        raise ConfigError("--previous and --since cannot be combined; use --lines with --previous")


def _lines(asked: argparse.Namespace, default: int) -> int:
    if asked.lines is not None:
        return int(asked.lines)
    return default if asked.since is None else LINES_MAX


def _print_ended(verdict: Verdict, view: StoreView, processes: list[tuple[Role, int]]) -> None:
    """The job has ended, and so have its agents: print where the logs are, and the failure of the final status."""
    where = [_last_location_text(view, role, index) for role, index in processes] or [
        "each log is in the log directory of its host; `elastic-ctl logs RANK` names the host of a rank"
    ]
    lines = [f"the job {failure_report.HOW_ENDED[verdict.status]}, and its agents have ended; {where[0]}"]
    if verdict.cause is not None:
        lines += failure_report.failure_lines(verdict.cause)
    write(map(sanitize_line, lines))


def _last_location_text(view: StoreView, role: Role, index: int) -> str:
    if why := process_location.elsewhere(view):
        return why
    location = process_location.locate(view, role, index)
    if location is None:
        return process_location.why_absent(view, role, index)
    name = process_name(role, index)
    return f"the log of {name} is {log_name(role, index)} in the log directory of host {location.host}"


COMMAND: Final = Subcommand(
    "logs",
    "show the log of a worker, or of all workers, wherever they run",
    _arguments,
    _run,
    examples=(
        ("Show the last 20 lines of rank 3", "elastic-ctl logs 3 -n 20"),
        ("Follow rank 0 across restarts, until the job ends", "elastic-ctl logs 0 -f"),
        ("Follow all ranks, each line with its rank", "elastic-ctl logs --all -f"),
        ("Show what rank 0 has written in the last 5 minutes", "elastic-ctl logs 0 --since 5m"),
        ("Show why rank 0 ended before the last restart", "elastic-ctl logs 0 --previous"),
    ),
)
