"""A person at a desk who types what the documents show: an etcd of its own, a folder with a train.py, and a shell.

What stands for something else is written down in `STAND_FOR`. A command is otherwise run as it stands, by bash.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from elastic.store.embedded import guarded
from launcher.agent.node_id import MARK
from tests.support import stub_torch
from tests.support.doc_commands import ROOT, Command

LIMIT_S: Final = 60.0

STAND_FOR: Final[Mapping[str, str]] = {
    r"(?<=--elastic-server[ =])\S+|(?<=--rdzv-endpoint[ =])\S+": "{etcd}",
    r"(?<=--job-id[ =])\S+|(?<=--rdzv-id[ =])\S+": "{job}",
    r"192\.168\.0\.16|\bps-?0(\.ps)?(?=:)": "127.0.0.1",
    r"(?<=elastic-ctl logs )(?!-)\S+|(?<=elastic-ctl stacks )\S+": "0",
    r"(?<=elastic-ctl events )…": "",
    r"(?<=elastic-ctl drain )(M_id|[0-9]+(?![\w.]))": "0",
    rf"(?<=elastic-ctl drain )([a-z0-9.]+-{MARK}|NODE)": "{node}",
    r"(?<=elastic-ctl drain )(10\.\S+|HOST)": "127.0.0.1",
    r"\| source\b": "| cat",
    r"\b9401\b": "{port}",
    r"\b8169\b": "{port}",
}
"""What in a command is another thing here: an address, a job, a rank of a job of one, a port that is free."""

TRAIN: Final = """
import os, sys, time
if os.environ.get("TRAINING_ROLE") == "PSERVER":
    time.sleep(1000)
elif "--lr" in sys.argv:
    import elastic
    for step in range(1, 100_000):
        elastic.report(step, loss=1 / step)
        print("step", step, flush=True)
        time.sleep(0.02)
else:
    print("trained", sys.argv[1:])
"""
"""The reader's script: it goes on until it is stopped when it is given a learning rate; else it has trained at once."""

SHIMS: Final = {
    "elastic-launch": ("launcher",),
    "elastic-ctl": ("launcher.ctl",),
    "python": (),
}


class Desk:
    """One folder and one etcd; commands are typed here."""

    def __init__(self, folder: Path, etcd: str, job: str, **places: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.places = {"etcd": etcd, "job": job, **places}
        (folder / "train.py").write_text(TRAIN)
        (folder / "bin").mkdir(exist_ok=True)
        for name, module in SHIMS.items():
            shim = folder / "bin" / name
            words = f"-m {module[0]} " if module else ""
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
            shim.chmod(0o755)
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC_", "PADDLE_"))}
        self.environ = {
            **kept,
            "PATH": f"{folder / 'bin'}:{kept['PATH']}",
            "PYTHONPATH": stub_torch.path(folder),
            "ELASTIC_ETCD": etcd,
            "ELASTIC_JOB_ID": job,
            "ELASTIC_NO_PRELOAD": "1",
            "ELASTIC_JOIN_WINDOW": "0.2",
            "ELASTIC_LEASE_TTL": "10",
            "ELASTIC_SPOT": "none",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(folder),
        }

    def here(self, command: Command) -> str:
        """The command as it is typed here."""
        text = command.text
        for what, place in STAND_FOR.items():
            if command.fails and "drain" in what:
                continue
            if "{" not in place or place[1:-1] in self.places:
                text = re.sub(what, place.format(**self.places), text)
        return text

    @contextmanager
    def typed(self, text: str, *, within: str = ".", environ: Mapping[str, str] | None = None) -> Iterator[Typed]:
        """Type a command and go on; it is ended with the block."""
        folder = self.folder / within
        folder.mkdir(exist_ok=True)
        if not (folder / "train.py").exists():
            (folder / "train.py").write_text(TRAIN)
        process = subprocess.Popen(
            guarded(["/bin/bash", "-o", "pipefail", "-c", text]),
            cwd=folder,
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield Typed(text, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def ran(self, text: str, **others: str) -> tuple[int, str]:
        """Type a command; its exit code and all that it prints."""
        with self.typed(text, environ=others) as one:
            return one.ends(), one.said


class Typed:
    """A command that runs: what it has printed so far."""

    def __init__(self, text: str, process: subprocess.Popen[str]) -> None:
        self.text = text
        self.process = process
        self.said = ""

    def says(self, pattern: str) -> re.Match[str]:
        """Wait for a line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{self.text} never said {pattern!r}:\n{self.said}")

    def ends(self) -> int:
        """Wait for its end, and for all that it prints."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.said += rest
        return self.process.returncode


def unlike(desk: Desk, commands: Sequence[Command]) -> dict[str, Command]:
    """The commands by what is typed here: those that come to the same are typed once."""
    return {desk.here(command): command for command in reversed(commands)}


__all__ = ["ROOT", "Desk", "Typed", "unlike"]
