"""What a forked worker has to set right in libraries that were loaded in its nursery, through their own calls."""

from __future__ import annotations

import ctypes
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""What OpenBLAS reads, the first that is a number above 0 counts."""
PREFIXES = ("", "scipy_")
SUFFIXES = ("", "64_", "_64")


def installed() -> tuple[str, ...]:
    """How the paths begin that change only when something is installed."""
    return tuple({*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")})


def openblas_setters() -> list[Callable[[int], Any]]:
    """The calls that set the number of threads, of each OpenBLAS that is loaded: numpy and scipy bring their own."""
    setters = []
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    for path in sorted(paths):
        if not Path(path).name.startswith("lib") or not os.path.exists(path):
            continue
        library = ctypes.CDLL(path)
        names = [f"{prefix}openblas_set_num_threads{suffix}" for prefix in PREFIXES for suffix in SUFFIXES]
        name = next((name for name in names if hasattr(library, name)), None)
        if name is not None:
            setters.append(getattr(library, name))
    return setters


def openblas_threads(env: Mapping[str, str]) -> int:
    """How many threads OpenBLAS takes in a process that is started with these variables."""
    for name in THREADS:
        text = env.get(name, "").strip()
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def set_openmp_threads(threads: int) -> None:
    """For a worker with another OMP_NUM_THREADS than its nursery: of torch, and of each OpenMP that is loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "omp" in line.rpartition("/")[2]}
    for path in sorted(paths):
        if os.path.exists(path) and hasattr(library := ctypes.CDLL(path), "omp_set_num_threads"):
            library.omp_set_num_threads(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


def restore(env: Mapping[str, str], nursery: Mapping[str, str], setters: list[Callable[[int], Any]]) -> None:
    """Give OpenBLAS its threads, and every generator of random numbers a state of its own.

    Python's own is seeded by python itself after a fork. `nursery` is what torch and OpenMP have read when they were
    loaded; it may differ in OMP_NUM_THREADS.
    """
    if (text := env.get("OMP_NUM_THREADS")) != nursery.get("OMP_NUM_THREADS") and text is not None:
        set_openmp_threads(int(text))
    threads = openblas_threads(env)
    if threads > 1:
        for setter in setters:
            setter(threads)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
