"""The flags of `elastic-launch` that messages name, as a user of torchrun types them (pure)."""

from __future__ import annotations

import re

from launcher.config import readers
from launcher.torchrun.options import BY_FLAG, OPTIONS

RENAMED = {
    "np": "--nnodes",
    "job_id": "--rdzv-id",
    "elastic_server": "--rdzv-endpoint",
    "host": "--local-addr",
    "nproc_per_node": "--nproc-per-node",
    "max_restarts": "--max-restarts",
    "run_mode": "the launcher",
}
"""Flags that torchrun has under another name."""

SWITCHES = frozenset(option.flag for option in OPTIONS if option.read is readers.boolean)

_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


def translate_message(text: str) -> str:
    """Return the text with the options of the plugin written as `NAME in --rdzv-conf`."""
    return _FLAG.sub(_renamed, text)


def _renamed(found: re.Match[str]) -> str:
    name = found[1].replace("-", "_")
    if name in RENAMED:
        return RENAMED[name]
    if name not in BY_FLAG:
        return found[0]
    return f"{BY_FLAG[name]}{'=1' if name in SWITCHES else ''} in --rdzv-conf"
