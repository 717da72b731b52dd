"""How the agent starts a nursery, and how it knows that one is out of date. Nothing of torch is loaded here."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from launcher.nursery.main import START, Setup
from launcher.nursery.preload import stamp
from launcher.nursery.warm_policy import Recipe
from launcher.system import open_files
from launcher.system.private_env import without


def new_nursery(fd: int, lock: Path | None, recipe: Recipe) -> subprocess.Popen[bytes]:
    """Start it in its own session, out of reach of the terminal's Ctrl-C. `fd` is its end of the socket pair."""
    setup = Setup(
        fd,
        os.getpid(),
        lock="" if lock is None else str(lock),
        cold=recipe.cold,
        preload=recipe.preload,
        folder=recipe.folder,
        home=_home(),
    )
    process = subprocess.Popen(
        [sys.executable, "-c", START, setup.text],
        env={**dict(recipe.wishes), **without(os.environ, ())},  # It stays readable in what is forked.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(fd,),
        start_new_session=True,
    )
    open_files.as_given(process.pid)
    return process


def out_of_date(watched: Iterable[str]) -> bool:
    """Tell whether one of these files was changed since a nursery has loaded it."""
    return any(stamp(one.partition(":")[2]) != one for one in watched)


def _home() -> str:
    """The way to this package where it is not installed (a checkout that is run in place), else ""."""
    home = str(Path(__file__).resolve().parent.parent)
    return "" if home in (*site.getsitepackages(), site.getusersitepackages()) else home
