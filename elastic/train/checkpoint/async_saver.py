"""Saving in the background: training waits for a copy in host memory, a thread does the rest.

A replicated state is copied and written by rank 0 alone. Of a sharded state every rank copies its shards, and the
threads of all ranks write one checkpoint together (see `elastic.train.checkpoint.collective_save`).

The threads are not daemons: python's exit waits for a save that was started. Who destroys the process group first must
call `wait` before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic.errors import CheckpointError
from elastic.train.checkpoint.folder import Checkpoints, check_names

MATTERS_S = 0.1
"""A wait for the save before that is shorter is not worth a line."""

Trees = Mapping[str, Any]

log = logging.getLogger(__name__)


class AsyncSaver:
    """Saves into one folder, one checkpoint at a time."""

    def __init__(
        self, checkpoints: Checkpoints, group: Any = None, *, on_saved: Callable[[int, Path], None] | None = None
    ) -> None:
        """Save through `checkpoints`; allocates nothing yet.

        `group` is one of gloo's with all ranks in it that nobody else uses; None where there is no process group, or no
        sharded part. `on_saved` is called in the thread of rank 0 for each checkpoint that stands.
        """
        self._checkpoints = checkpoints
        self._group = group
        self._on_saved = on_saved
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._copies: Any = None
        self._told = False

    def start(
        self,
        step: int,
        replicated: Trees,
        sharded: Mapping[str, Trees] | None = None,
        *,
        also: Callable[[], Trees] = dict,
    ) -> None:
        """Begin to save `step`; returns once the state is copied, so that training may change it.

        `replicated` are trees that are the same on all ranks, `sharded` flat dicts of DTensors, tensors and plain
        values. `also` makes further replicated trees, in the thread of rank 0. Every rank calls this at the same steps.
        If the save before still runs, this waits for it, and says so once. Raises what went wrong with the save before.
        """
        if not sharded and self._checkpoints.rank != 0:
            return
        check_names(step, (*replicated, *(sharded or {})))
        if clash := replicated.keys() & (sharded or {}).keys():
            raise ValueError(f"{', '.join(sorted(clash))} cannot be both a replicated and a sharded part")
        self._wait_and_say(step)
        from elastic.train.statedict import host_copy

        for name, tree in replicated.items():
            host_copy.require_replicated(name, tree)
        self._copies = self._copies or host_copy.HostCopy()
        own = replicated if self._checkpoints.rank == 0 else {}
        copied = self._copies.take({"replicated": dict(own), "sharded": dict(sharded or {})})
        self._thread = threading.Thread(
            target=self._run,
            args=(step, copied["replicated"], copied["sharded"], also),
            name=f"elastic-save-{step}",
            daemon=False,
        )
        self._thread.start()

    def wait(self) -> None:
        """Return once no save runs. Raises what went wrong with the last one: a CheckpointError, on all its ranks."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _wait_and_say(self, step: int) -> None:
        before, outstanding = time.monotonic(), self._thread is not None
        self.wait()
        waited_s = time.monotonic() - before
        if outstanding and waited_s > MATTERS_S and not self._told:
            self._told = True
            log.warning(
                "the save before step %d took until now, and training waited %.1f s for it: raise `every` in commit",
                step,
                waited_s,
            )

    def _run(self, step: int, replicated: Trees, sharded: Mapping[str, Trees], also: Callable[[], Trees]) -> None:
        try:
            if sharded:
                from elastic.train.checkpoint.collective_save import CollectiveSave

                saving = CollectiveSave(self._checkpoints, self._group, step)
                target: Path | None = saving.save(lambda: {**replicated, **also()}, sharded)
            else:
                target = self._checkpoints.save(step, **replicated, **also())
            if self._on_saved is not None and target is not None and self._checkpoints.rank == 0:
                self._on_saved(step, target)
        except CheckpointError as error:
            error.__cause__ = None  # The text says all; a chain of stack traces of this thread would bury it.
            self._fail(step, error.with_traceback(None))
        except Exception as error:  # noqa: BLE001  # It is raised at the next call.
            self._fail(step, CheckpointError(f"saving step {step} failed: {type(error).__name__}: {error}"), error)

    def _fail(self, step: int, error: CheckpointError, cause: Exception | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        self._failure = error
        log.error("step %d is not saved; the checkpoints before it stay: %s", step, error)
