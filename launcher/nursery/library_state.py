"""What a forked worker has to correct in libraries that its fork server has loaded, through their own calls."""

from __future__ import annotations

import ctypes
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The variables that OpenBLAS reads; it uses the first one with a number above 0."""
PREFIXES = ("", "scipy_")
SUFFIXES = ("", "64_", "_64")


def installed() -> tuple[str, ...]:
    """Return the beginnings of the paths that change only when something is installed."""
    return tuple({*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")})


def home() -> str:
    """Return the directory that our packages are in."""
    return str(Path(__file__).resolve().parents[2])


def loaded_libraries() -> set[str]:
    """Return the paths of the shared libraries of this process."""
    with open("/proc/self/maps") as maps:
        paths = {line[line.index("/") :].strip() for line in maps if "/" in line}
    return {path for path in paths if ".so" in os.path.basename(path)}


def _open_libraries(wanted: Callable[[str], bool]) -> Iterator[ctypes.CDLL]:
    """Yield the shared libraries of this process whose path is `wanted`."""
    return (ctypes.CDLL(path) for path in sorted(loaded_libraries()) if wanted(path) and os.path.exists(path))


def openblas_setters() -> list[Callable[[int], Any]]:
    """Return the calls that set the number of threads, of each loaded OpenBLAS: numpy and scipy bring their own."""
    names = [f"{prefix}openblas_set_num_threads{suffix}" for prefix in PREFIXES for suffix in SUFFIXES]
    setters = []
    for library in _open_libraries(lambda path: "openblas" in path and Path(path).name.startswith("lib")):
        setters += [getattr(library, name) for name in names if hasattr(library, name)][:1]
    return setters


def openblas_threads(env: Mapping[str, str]) -> int:
    """Return how many threads OpenBLAS takes in a process that is started with these variables."""
    for name in THREADS:
        text = env.get(name, "").strip()
        if text.isdigit() and int(text) > 0:
            return int(text)
    return len(os.sched_getaffinity(0))


def set_openmp_threads(threads: int) -> None:
    """Set the threads of torch and of each loaded OpenMP, for a worker with another OMP_NUM_THREADS."""
    for library in _open_libraries(lambda path: "omp" in os.path.basename(path)):
        if hasattr(library, "omp_set_num_threads"):
            library.omp_set_num_threads(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


def restore(env: Mapping[str, str], nursery: Mapping[str, str], setters: list[Callable[[int], Any]]) -> None:
    """Give OpenBLAS its threads, and every random number generator a state that no other worker has.

    Python itself seeds its own after a fork. `nursery` are the variables that torch and OpenMP have read when they were
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
