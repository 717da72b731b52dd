"""Which run of which job this is, and the ID under which trackers know it."""

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
"""Characters of the job ID in a run's ID: a person recognises it, and W&B and file systems take the whole."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What tells the runs of jobs apart. `incarnation` and `run` are "" outside elastic-launch.

    Attributes:
        job_id: The job.
        incarnation: The random word of the job's first start in this etcd.
        run: The run of the job: "1", and one more with each `--rerun`.
    """

    job_id: str
    incarnation: str
    run: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RunIdentity:
        """Read it from the environment of a worker."""
        incarnation = environ.get("ELASTIC_FENCE", "").rpartition("/")[0]
        run = (environ.get("ELASTIC_RUN") or "1") if incarnation else ""
        return cls(environment.read(environ).job_id, incarnation, run)

    def run_id(self) -> str:
        """An ID for trackers: letters, digits, "_" and "-". Outside elastic-launch it is another one at each call."""
        unique = f"{self.incarnation}/{self.run}" if self.incarnation else secrets.token_hex(8)
        digest = hashlib.sha256(f"{self.job_id}\0{unique}".encode()).hexdigest()[:10]
        return f"{safe(self.job_id)[:NAME_MAX] or 'run'}-{digest}"

    def continues(self, recorded: RunIdentity) -> bool:
        """Tell whether a run that the folder has a record of is this one.

        Another run of the same incarnation is not: a user asked for it with `--rerun`. A new incarnation is: etcd
        came back empty, or the job was forgotten, and training continues from the checkpoints in this folder.
        """
        return recorded.incarnation != self.incarnation or recorded.run == self.run


def recorded_id(own: RunIdentity, folder: Path) -> str:
    """Take the recorded ID if this run continues it; else derive one, and record it."""
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
