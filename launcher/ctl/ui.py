"""`elastic-ctl ui`: a page that shows a job, or all of them, live, for as long as the command runs."""

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
from launcher.config.argv import named_values
from launcher.config.flags import JOB_FLAGS
from launcher.job.named_job import WHO, Subcommand, named_store, open_store, write
from launcher.net.endpoints import join_host_port
from launcher.system import limits
from launcher.system.descriptors import write_stderr_line

HERE: Final = "127.0.0.1"
TOKEN_BYTES: Final = 24
TOKEN_MIN: Final = 16
TOKEN_MAX: Final = 256
SIGNS: Final = re.compile(r"[A-Za-z0-9._~-]+")
"""What stands in an address as it is (RFC 3986, 2.3)."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=readers.argument(_listen),
        default=(HERE, 0),
        metavar="[ADDRESS:]PORT",
        help=f"where browsers find it (default: a free port of {HERE}, for this machine alone)",
    )
    allowed = parser.add_mutually_exclusive_group()
    allowed.add_argument(
        "--allow_orders",
        action="store_true",
        help="who opens the address that is printed can scale, drain and stop: it has a token in it",
    )
    allowed.add_argument("--token_file", metavar="FILE", help="the same, with the token that stands in this file")


def _listen(text: str) -> tuple[str, int]:
    """An address and a port; 0 is a free one. Raises `ValueError`."""
    return readers.metrics_port(text) or (HERE, 0)


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from launcher.web.job_feed import JobFeeds  # Only now: no other command needs a server.
    from launcher.web.server import PageServer

    servers, key_prefix = named_store(vars(asked), environ)
    only: str = named_values(vars(asked), environ, JOB_FLAGS).get("job_id") or ""
    token = _token(asked)
    limits.raise_nofile_limit()  # Browsers, and the nodes of all jobs at which somebody looks.
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
                f"--listen {join_host_port(host, port)} cannot be had ({why}); name another port or address"
            ) from error
        if not ipaddress.ip_address(where[0].partition("%")[0]).is_loopback:
            write_stderr_line("warning: whoever reaches this address can see the job and read its logs", WHO)
        fragment = f"#token={token}" if asked.allow_orders else ""
        write([f"The page of {only or 'all jobs'} is at http://{join_host_port(*where)}/{fragment} (Ctrl-C ends it)"])
        await asyncio.Event().wait()
    finally:
        await server.close()
        await lives.close()
        await store.close()
    return 0


def _token(asked: argparse.Namespace) -> str:
    """The token that orders need; "": nobody can give any."""
    if asked.token_file is None:
        return secrets.token_urlsafe(TOKEN_BYTES) if asked.allow_orders else ""
    try:
        token = Path(asked.token_file).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token_file {asked.token_file} cannot be read ({error})") from error
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not SIGNS.fullmatch(token):
        raise ConfigError(
            f"--token_file {asked.token_file} needs a line of {TOKEN_MIN} to {TOKEN_MAX} letters, digits and -._~"
        )
    return token


COMMAND: Final = Subcommand(
    "ui", "serve a page that shows a job live, or all jobs, to browsers", _arguments, alone=_run, flags=JOB_FLAGS
)
