"""torchrun's names for flags: those that set a flag of `elastic-launch`, and those that have no effect here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from launcher.config import readers
from launcher.config.setting import option


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of the flag `flag`. `convert` turns its text into the text of that flag, or raises ValueError.

    `help` follows the help text of the flag, where the names do not mean the same.
    """

    flag: str
    help: str = ""
    convert: Callable[[str], str] = str
    metavar: str = ""


def nnodes(text: str) -> str:
    """A number of nodes is strict under torchrun: 2 means exactly 2, which is `--np 2:2`. A range stays a range."""
    nodes = readers.np(text)
    if text.strip().endswith("+"):
        raise ValueError(f"{text!r} is neither a number of nodes (2) nor a range (1:4); --np takes N+")
    return f"{nodes.low}:{nodes.high}" if ":" in text else f"{nodes.high}:{nodes.high}"


ALIASES: Final[Mapping[str, Alias]] = {
    "nnodes": Alias("np", "--nnodes N means --np N:N, as torchrun's does", nnodes, "N|MIN:MAX"),
    "rdzv_endpoint": Alias("elastic_server", "--rdzv-endpoint, too, is the address of etcd and not that of a node"),
    "rdzv_id": Alias("job_id"),
    "local_addr": Alias("host"),
    "master_port": Alias("ctrl_port"),
}
"""Names that set a flag with another name. The names that torchrun and `elastic-launch` share are not here."""

NO_EFFECT: Final[Mapping[str, str]] = {
    "rdzv_backend": "nodes always rendezvous through etcd (--elastic-server)",
    "rdzv_conf": "use --lease-ttl, --silence-timeout, --join-window, --join-timeout and --connect-timeout",
    "node_rank": "nodes agree on their ranks in etcd, or take them from the order of --ips",
    "master_addr": "nodes agree on the master in etcd, which --elastic-server names or --serve starts",
}
"""Flags that take a value and change nothing, each with what is used instead."""


def no_effect_note(name: str) -> str:
    """Return the line to print if a flag without effect is given."""
    return f"{option(name)} has no effect: {NO_EFFECT[name]}"


STANDALONE_NOTE: Final = "--rdzv-endpoint has no effect with --standalone: this node starts its own etcd"
