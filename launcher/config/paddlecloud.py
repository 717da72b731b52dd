"""PaddleCloud's variables, which name every node of a job, so that `--ips` can be left out (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from elastic.core.model import JobMode
from launcher.config import readers
from launcher.config.node_settings import PS_FLAGS
from launcher.config.setting import WORKER_MARK

LIST: Final = "PADDLE_TRAINERS"
ALL: Final = (
    "POD_IP",
    LIST,
    "PADDLE_TRAINER_ID",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_PORT",
    "TRAINER_PORTS_NUM",
)
"""Only a node of PaddleCloud has all of them."""
REPLACED_BY: Final = frozenset({"ips", "elastic_server", "local_nodes", *PS_FLAGS})
"""Flags that say themselves what the nodes are."""


def hosts(environ: Mapping[str, str], given: Collection[str], run_mode: str) -> tuple[str, ...]:
    """The hosts of the job in their order, () where this is not PaddleCloud, or where it does not count.

    It counts in a collective job, unless one of the flags that were given says itself what the nodes are.

    Inside a worker of ours it never is: some of these variables are then ours. In its parameter-server mode
    PADDLE_TRAINERS is a number, and so no list. Raises `ConfigError` for a list that cannot be read.
    """
    if run_mode != JobMode.COLLECTIVE or REPLACED_BY.intersection(given):
        return ()
    if WORKER_MARK in environ or not all(environ.get(name, "").strip() for name in ALL):
        return ()
    text = environ[LIST].strip()
    if text.isdecimal():
        return ()
    return readers.read_as(LIST, readers.hosts, text)


def used_notice(ips: tuple[str, ...], host: str) -> str:
    """Say that these variables are used, and how to do without them."""
    return (
        f"PaddleCloud's variables are used: {LIST} gives --ips {','.join(ips)}, and this node is {host} "
        "(--ips or --elastic_server replaces them)"
    )
