"""Which workers start warm, and what their nursery has to have for it (pure).

A warm worker is forked from a nursery that has imported torch: it reaches its first step seconds earlier. It must see
nothing else than a fresh python would show it; where that cannot be had, it starts cold, and a reason is given.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

NO_WARM: Final = "--no_warm"
NO_TORCH: Final = "torch is not installed"
QUIET: Final = (NO_WARM, NO_TORCH)
"""Reasons that nobody needs to be told: it was asked for, or there is nothing to be warm with."""

FORBIDDING: Final = (
    "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONTRACEMALLOC",
    "PYTHONVERBOSE",
    "PYTHONDUMPREFS",
    "PYTHONMALLOCSTATS",
)
"""Variables of python that watch a process from its first import, or after its last line."""

READ_EARLY: Final = (
    "PYTHON",
    "TORCH",
    "PYTORCH",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "NPY_",
    "NUMPY_",
    "NUMEXPR_",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "LC_",
    "LANG",
    "TZ",
)
"""Beginnings of the variables that python, torch, numpy and the C library read when they are loaded."""
READ_LATER: Final = ("TORCHELASTIC_", "TORCH_NCCL_")
"""Of these, the ones that torch reads when they are used."""


class PreloadConfig(NamedTuple):
    """What a nursery is to have imported. `cold` says why nothing; "" is warm.

    `preload` are the modules that the user names, `folder` is where python looks first for modules of the script, None
    if it does not (PYTHONSAFEPATH). `wishes` are variables that every worker has, beside those of the agent. With
    `learns` workers report what their script imports.
    """

    cold: str = NO_WARM
    preload: tuple[str, ...] = ()
    folder: str | None = None
    wishes: tuple[tuple[str, str], ...] = ()
    learns: bool = False


def why_environment_cold(environ: Mapping[str, str]) -> str:
    """Why no worker with these variables can start warm, "" if it can."""
    found = [name for name in FORBIDDING if environ.get(name)]
    return f"{found[0]} is set" if found else ""


def read_early(name: str) -> bool:
    """Tell whether this variable counts at the moment when torch, numpy or python itself is loaded."""
    return name.startswith(READ_EARLY) and not name.startswith(READ_LATER)


def why_cold(argv: Sequence[str], env: Mapping[str, str], nursery: Mapping[str, str]) -> str:
    """Why this command cannot start warm from a nursery with these variables, "" if it can."""
    if not argv or argv[0] != sys.executable:
        return f"{Path(argv[0]).name if argv else 'nothing'} is not run by this python"
    if len(argv) < 2 or (argv[1] in ("-c", "-m") and len(argv) < 3) or (argv[1][:1] == "-" and argv[1][:3] not in RUNS):
        return "python has flags of its own"
    if cold := why_environment_cold(env):
        return cold
    differing = sorted(
        name for name in env.keys() | nursery.keys() if read_early(name) and env.get(name) != nursery.get(name)
    )
    if "OMP_NUM_THREADS" in differing and re.fullmatch("[1-9][0-9]{0,4}", env.get("OMP_NUM_THREADS", "")):
        differing.remove("OMP_NUM_THREADS")  # A number can be set later (`library_state`).
    return f"{differing[0]} is not what it was at the start of the nursery" if differing else ""


RUNS: Final = ("-c", "-m")
"""The flags of python that say what is to be run."""
