"""Scripts that a user starts with plain python, torchrun or elastic-launch, run to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.scripts.torch_forkserver import Forked, without_gloo

LIMIT_S = 90.0
"""How long a script may take on a slow machine."""

WARM = {"ELASTIC_NO_PRELOAD": "0"}
"""For a run with several workers on a node, or several starts: what they import is then loaded once."""

LEFT_OUT = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TRAINING_ROLE", "PYTHONUNBUFFERED"}
)


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what any launcher sets, without cards, with one thread."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("ELASTIC_", "PADDLE_", "TORCHELASTIC_")) and name not in LEFT_OUT
    }
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "ELASTIC_SPOT": "none", **more}


def start(words: Sequence[str], cwd: Path, **environ: str) -> subprocess.Popen[str]:
    """Start `python` with these words."""
    return start_with(subprocess.DEVNULL, words, cwd, environ)


def start_with(stdin: int, words: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """The same with a stdin, as `subprocess` has it."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env=environment(**{"ELASTIC_NO_PRELOAD": "1", **environ}),  # One worker and one start: nothing to save.
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code, and all that it wrote to stdout and stderr."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired as late:
        process.kill()  # If it is an agent that hangs: its nursery then ends the workers.
        out, err = process.communicate()
        late.add_note(f"{out}\n{err}")
        raise
    return process.returncode, without_gloo(out), err


def run(words: Sequence[str], cwd: Path, **environ: str) -> tuple[int, str, str]:
    """Run `python` with these words to its end."""
    return finish(start(words, cwd, **environ))


def completed(words: Sequence[str], cwd: Path, **environ: str) -> list[str]:
    """The lines on stdout of a run that must end with 0."""
    code, out, err = run(words, cwd, **environ)
    assert code == 0, f"exit code {code}\n{out}\n{err}"
    return out.splitlines()


def completed_forked(words: Sequence[str], cwd: Path, **environ: str) -> list[str]:
    """The same for a module, or a script (.py), in a process that finds torch loaded."""
    process = Forked(words, environment(**environ), cwd=cwd, errors=2)
    try:
        said = process.output(LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, said
    return said.splitlines()
