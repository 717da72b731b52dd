"""How the agent starts a nursery, and how it knows that one is out of date. Nothing of torch is loaded here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.config.config import Config
from launcher.nursery import library_state
from launcher.nursery.main import START, NurserySetup
from launcher.nursery.preload import stamp
from launcher.nursery.warm_policy import NO_WARM, PreloadConfig, read_early, why_environment_cold
from launcher.system import limits
from launcher.system.private_env import inheritable_env


def new_nursery(fd: int, lock: Path | None, recipe: PreloadConfig) -> subprocess.Popen[bytes]:
    """Start it in its own session, out of reach of the terminal's Ctrl-C. `fd` is its end of the socket pair."""
    setup = NurserySetup(
        fd,
        os.getpid(),
        lock="" if lock is None else str(lock),
        cold=recipe.cold,
        preload=recipe.preload,
        folder=recipe.folder,
        home="" if (home := library_state.home()) in library_state.installed() else home,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", START, setup.text],
        env={**dict(recipe.wishes), **inheritable_env(os.environ, ())},  # It stays readable in what is forked.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(fd,),
        start_new_session=True,
    )
    limits.restore_nofile_limit(process.pid)
    return process


def out_of_date(watched: Iterable[str]) -> bool:
    """Tell whether one of these files was changed since a nursery has loaded it."""
    return any(stamp(one.partition(":")[2]) != one for one in watched)


def preload_config(config: Config, environ: Mapping[str, str], wishes: Mapping[str, str]) -> PreloadConfig:
    """The recipe for the workers of this node. `wishes` are set for them where `environ` sets nothing."""
    if config.no_warm:
        cold = NO_WARM
    elif not config.python:
        cold = f"{Path(config.script).name} is not run by python"
    else:
        cold = why_environment_cold(environ)
    folder: str | None = None
    if not environ.get("PYTHONSAFEPATH"):
        folder = os.getcwd() if config.module else os.path.dirname(os.path.realpath(config.script))
    early = tuple((name, text) for name, text in wishes.items() if read_early(name) and name not in environ)
    return PreloadConfig(cold, config.preload, folder, early)
