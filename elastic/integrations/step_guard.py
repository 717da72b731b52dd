"""Drops values that an earlier generation has already logged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic.integrations.record import write_record
from elastic.train.report import log_to_agent


class StepGuard:
    """Selects the values that earlier generations have not logged. Steps that this process repeats are not dropped."""

    def __init__(
        self, logged: Callable[[], Mapping[str, int]], write: Callable[[Mapping[str, int]], None] | None = None
    ) -> None:
        """`logged` returns the last step of each name, at the first use; `write` saves them for the next generation."""
        self._logged, self._write = logged, write
        self._before: Mapping[str, int] | None = None
        self._last: dict[str, int] = {}

    def is_new(self, name: str, step: int) -> bool:
        """Return whether no earlier generation has logged this name at this step or a later one."""
        if self._before is None:
            self._before = dict(self._logged())
            self._last = dict(self._before)
        return step > self._before.get(name, -1)

    def new(self, values: Mapping[str, Any], step: int | None, name: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the values to log; all of them if there is no step.

        They count as logged from now on: a worker that dies right after this call leaves a gap, not a repeated step.
        `name` returns the name under which the tracker stores a value.
        """
        if step is None:
            return dict(values)
        new = {key: value for key, value in values.items() if self.is_new(name(key), step)}
        raised = {name(key): step for key in new if step > self._last.get(name(key), -1)}
        if raised and self._write is not None:
            self._last.update(raised)
            self._write(self._last)
        return new


def file_guard(path: Path) -> StepGuard:
    """Return a guard that keeps the last step of each name in a file, for a tracker that cannot be queried."""

    def logged() -> dict[str, int]:
        try:
            return {str(name): int(step) for name, step in json.loads(path.read_bytes()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError):  # A crash of the machine can leave an empty file.
            log_to_agent(f"{path} cannot be read, so W&B may show steps twice", warn=True)
            return {}

    return StepGuard(logged, lambda last: write_record(path, last))
