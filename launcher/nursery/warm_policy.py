"""Decides which workers start preloaded, and what their fork server has to load for that (pure).

A preloaded worker is forked from a fork server that has imported torch: it reaches its first step seconds earlier. It
must see exactly what a fresh Python would show it; if that is impossible, it starts without preloading, and the reason
is reported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

NO_WARM: Final = "--no-preload"
NO_TORCH: Final = "torch is not installed"
QUIET: Final = (NO_WARM, NO_TORCH)
"""Reasons that users need not see: they asked for it, or there is nothing to preload."""

FORBIDDING: Final = (
    "PYTHONINSPECT",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONTRACEMALLOC",
    "PYTHONVERBOSE",
    "PYTHONDUMPREFS",
    "PYTHONMALLOCSTATS",
)
"""Variables of Python that watch a process from its first import, or after its last line."""

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
"""Prefixes of the variables that Python, torch, numpy and the C library read when they are loaded."""
READ_LATER: Final = ("TORCHELASTIC_", "TORCH_NCCL_")
"""Those of these variables that torch only reads when it needs them."""


class PreloadConfig(NamedTuple):
    """The imports of a fork server. `cold` says why it imports nothing; "" means that it preloads.

    `preload` are the modules that the user names, `folder` is where Python looks first for modules of the script, None
    if it does not (PYTHONSAFEPATH). `wishes` are variables that every worker has, in addition to those of the agent.
    With `learns` workers report what their script imports.
    """

    cold: str = NO_WARM
    preload: tuple[str, ...] = ()
    folder: str | None = None
    wishes: tuple[tuple[str, str], ...] = ()
    learns: bool = False


def why_environment_cold(environ: Mapping[str, str]) -> str:
    """Return why no worker with these variables can start preloaded, "" if it can."""
    found = [name for name in FORBIDDING if environ.get(name)]
    return f"{found[0]} is set" if found else ""


def read_early(name: str) -> bool:
    """Return whether torch, numpy or Python itself reads this variable while it is loaded."""
    return name.startswith(READ_EARLY) and not name.startswith(READ_LATER)


def why_cold(argv: Sequence[str], env: Mapping[str, str], nursery: Mapping[str, str]) -> str:
    """Return why this command cannot start preloaded from a fork server with these variables, "" if it can."""
    if not argv or argv[0] != sys.executable:
        return f"{Path(argv[0]).name if argv else 'nothing'} is not run by this Python"
    if len(argv) < 2 or (argv[1] in ("-c", "-m") and len(argv) < 3) or (argv[1][:1] == "-" and argv[1][:3] not in RUNS):
        return "Python has command-line flags"
    if cold := why_environment_cold(env):
        return cold
    differing = sorted(
        name for name in env.keys() | nursery.keys() if read_early(name) and env.get(name) != nursery.get(name)
    )
    if "OMP_NUM_THREADS" in differing and re.fullmatch("[1-9][0-9]{0,4}", env.get("OMP_NUM_THREADS", "")):
        differing.remove("OMP_NUM_THREADS")  # A number can be set later (`library_state`).
    return f"{differing[0]} differs from its value at the start of the fork server" if differing else ""


RUNS: Final = ("-c", "-m")
"""The flags of Python that say what to run."""
