"""Identifies the run of a job, and derives the ID that trackers use for it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elastic import environment
from elastic.integrations.record import write_record

NAME_MAX: Final = 48
"""Characters of the job ID in a run's ID: enough to recognise it, few enough for W&B and file systems."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The identity of one run of one job. `incarnation` and `run` are "" outside elastic-launch.

    Attributes:
        job_id: The job ID.
        incarnation: The random ID of the job's first start in this etcd.
        run: The number of the run: "1" at first, incremented by each `--rerun`.
    """

    job_id: str
    incarnation: str
    run: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RunIdentity:
        """Read the identity from the environment of a worker."""
        incarnation = environ.get("ELASTIC_FENCE", "").rpartition("/")[0]
        run = (environ.get("ELASTIC_RUN") or "1") if incarnation else ""
        return cls(environment.read(environ).job_id, incarnation, run)

    def run_id(self) -> str:
        """Return an ID for trackers: letters, digits, "_" and "-". Outside elastic-launch it is new at each call."""
        unique = f"{self.incarnation}/{self.run}" if self.incarnation else secrets.token_hex(8)
        digest = hashlib.sha256(f"{self.job_id}\0{unique}".encode()).hexdigest()[:10]
        return f"{safe(self.job_id)[:NAME_MAX] or 'run'}-{digest}"

    def continues(self, recorded: RunIdentity) -> bool:
        """Return whether a run recorded in the directory is continued by this one.

        A run with another number in the same incarnation is not: a user requested a new run with `--rerun`. A run of
        an older incarnation is: etcd lost its data, or the job was deleted from it, and training continues from the
        checkpoints in this directory.
        """
        return recorded.incarnation != self.incarnation or recorded.run == self.run


def recorded_id(own: RunIdentity, folder: Path) -> str:
    """Return the recorded ID if this run continues that one; otherwise derive an ID and record it."""
    path = folder / "run.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        recorded = json.loads(path.read_bytes())
        if own.continues(RunIdentity(own.job_id, recorded["incarnation"], recorded["run"])):
            own_id = str(recorded["id"])
            if recorded["incarnation"] == own.incarnation:
                return own_id
            return _record(path, own, own_id)
    return _record(path, own, own.run_id())


def _record(path: Path, own: RunIdentity, run_id: str) -> str:
    write_record(path, {"id": run_id, "incarnation": own.incarnation, "run": own.run})
    return run_id


def safe(text: str) -> str:
    """Return the text with "-" for all but letters, digits, "_" and "-", for file names and IDs."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")
