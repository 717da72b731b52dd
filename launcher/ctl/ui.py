"""`elastic-ctl ui`: a dashboard of one job or of all jobs, for as long as the command runs."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from elastic.errors import ConfigError
from launcher.config import readers
from launcher.config.argv import OLD_NAMES_UNTIL, named_values
from launcher.config.flags import JOB_FLAGS
from launcher.job.named_job import WHO, Subcommand, named_store, open_store, write
from launcher.net.endpoints import join_host_port
from launcher.system import limits
from launcher.system.descriptors import write_stderr_line

LOOPBACK: Final = "127.0.0.1"
RENAMED_FLAG: Final = f"--allow-orders is now --allow-actions; the old name works until {OLD_NAMES_UNTIL}"
TOKEN_BYTES: Final = 24
TOKEN_MIN: Final = 16
TOKEN_MAX: Final = 256
TOKEN_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~-]+")
"""Characters that need no escape in a URL (RFC 3986, 2.3)."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=readers.argument(_listen),
        default=(LOOPBACK, 0),
        metavar="[ADDRESS:]PORT",
        help=f"the address to listen on (default: a free port of {LOOPBACK}, for browsers on this machine)",
    )
    allowed = parser.add_mutually_exclusive_group()
    allowed.add_argument(
        "--allow-actions",
        action="store_true",
        help="print an address with a token; anyone who opens it can scale, drain and stop",
    )
    allowed.add_argument("--allow-orders", action="store_true", help=argparse.SUPPRESS)
    allowed.add_argument("--token-file", metavar="FILE", help="the same, with the token in this file")


def _listen(text: str) -> tuple[str, int]:
    """Read an address and a port; port 0 is any free one. Raises `ValueError`."""
    return readers.metrics_port(text) or (LOOPBACK, 0)


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from launcher.web.job_feed import JobFeeds  # Imported late: no other command needs a server.
    from launcher.web.server import PageServer

    if asked.allow_orders:
        asked.allow_actions = True
        write_stderr_line(RENAMED_FLAG, WHO)
    servers, key_prefix = named_store(vars(asked), environ)
    only: str = named_values(vars(asked), environ, JOB_FLAGS).get("job_id") or ""
    token = _token(asked)
    limits.raise_nofile_limit()  # For browsers, and for the nodes of all jobs that they show.
    store = open_store(vars(asked), environ)
    lives = JobFeeds(store, key_prefix, servers.endpoints)
    server = PageServer(lives, only, token)
    host, port = asked.listen
    try:
        try:
            where = await server.open(host, port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise ConfigError(
                f"--listen {join_host_port(host, port)} cannot be used ({why}); name another port or address"
            ) from error
        if not ipaddress.ip_address(where[0].partition("%")[0]).is_loopback:
            write_stderr_line("warning: anyone who can connect to this address can see the job and read its logs", WHO)
        fragment = f"#token={token}" if asked.allow_actions else ""
        write(
            [f"The dashboard of {only or 'all jobs'} is at http://{join_host_port(*where)}/{fragment} (Ctrl-C ends it)"]
        )
        await asyncio.Event().wait()
    finally:
        await server.close()
        await lives.close()
        await store.close()
    return 0


def _token(asked: argparse.Namespace) -> str:
    """Return the token that actions need; "" if no actions are allowed."""
    if asked.token_file is None:
        return secrets.token_urlsafe(TOKEN_BYTES) if asked.allow_actions else ""
    try:
        token = Path(asked.token_file).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file {asked.token_file} cannot be read ({error})") from error
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not TOKEN_CHARACTERS.fullmatch(token):
        raise ConfigError(
            f"--token-file {asked.token_file} needs a line of {TOKEN_MIN} to {TOKEN_MAX} letters, digits and -._~"
        )
    return token


COMMAND: Final = Subcommand(
    "ui",
    "serve a dashboard of a job, or of all jobs, to browsers",
    _arguments,
    alone=_run,
    flags=JOB_FLAGS,
    examples=(
        ("Show all jobs, to browsers on this machine", "elastic-ctl ui --elastic-server 10.0.0.5:2379"),
        ("Show one job, and allow scale, drain and stop", "elastic-ctl ui --job-id j1 --allow-actions"),
    ),
)
