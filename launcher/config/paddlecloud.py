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
REPLACED_BY: Final = frozenset({"ips", "elastic_server", "local_nodes", "standalone", *PS_FLAGS})
"""Flags that define the nodes of the job, so that PaddleCloud's variables do not count."""


def hosts(environ: Mapping[str, str], given: Collection[str], run_mode: str) -> tuple[str, ...]:
    """Return the hosts of the job in their order; () if PaddleCloud's variables are not set, or do not apply.

    They apply in a collective job, unless a flag of `REPLACED_BY` is among the `given` ones. They do not apply inside a
    worker, where elastic-launch sets some of them, nor in PaddleCloud's parameter-server mode, where PADDLE_TRAINERS is
    a number. Raises `ConfigError` for a list that cannot be read.
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
    """The message that these variables are used, with the flags that replace them."""
    return (
        f"PaddleCloud's variables are used: {LIST} gives --ips {','.join(ips)}, and this node is {host} "
        "(--ips or --elastic-server replaces them)"
    )
