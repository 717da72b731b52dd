"""Small files that rank 0 keeps in the job's checkpoint directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastic._disk.replace import replace_file
from elastic.train.report import log_to_agent


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a record of rank 0. A failure is logged, and training continues."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(content).encode())
    except OSError as error:
        log_to_agent(
            f"{path} cannot be written ({error.strerror}): after the next restart trackers may show steps twice",
            warn=True,
        )
