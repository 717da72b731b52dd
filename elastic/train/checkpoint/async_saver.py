"""Saves in the background: training waits only for a copy in host memory, and a thread does the rest.

Rank 0 alone copies and writes a replicated state. Of a sharded state every rank copies its shards, and the threads of
all ranks write one checkpoint together (see `elastic.train.checkpoint.collective_save`).

The threads are not daemons, so Python waits for a running save before it exits. Call `wait` before you destroy the
process group.
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
"""Shorter waits for the previous save are not logged."""

Trees = Mapping[str, Any]

log = logging.getLogger(__name__)


class AsyncSaver:
    """Saves into one directory, one checkpoint at a time."""

    def __init__(
        self, checkpoints: Checkpoints, group: Any = None, *, on_saved: Callable[[int, Path], None] | None = None
    ) -> None:
        """Save through `checkpoints`.

        `group` is a gloo group of all ranks that only this saver uses; None without a process group, or without a
        sharded component. The thread of rank 0 calls `on_saved` for each complete checkpoint.
        """
        self._checkpoints = checkpoints
        self._group = group
        self._on_saved = on_saved
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._copies: Any = None
        self._is_wait_logged = False

    def start(
        self,
        step: int,
        replicated: Trees,
        sharded: Mapping[str, Trees] | None = None,
        *,
        also: Callable[[], Trees] = dict,
    ) -> None:
        """Start saving `step`; returns once the state is copied, so that training may change it.

        `replicated` are trees that are the same on all ranks, `sharded` flat dicts of DTensors, tensors and plain
        values. `also` returns further replicated trees, in the thread of rank 0. Every rank calls this at the same
        steps. If the previous save still runs, this waits for it, and logs that once. Raises the error of the previous
        save, if any.
        """
        if not sharded and self._checkpoints.rank != 0:
            return
        check_names(step, (*replicated, *(sharded or {})))
        if clash := replicated.keys() & (sharded or {}).keys():
            raise ValueError(f"{', '.join(sorted(clash))} cannot be both a replicated and a sharded component")
        self._wait_and_log(step)
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
        """Wait for the running save. Raises its CheckpointError, on all ranks that take part in the save."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _wait_and_log(self, step: int) -> None:
        before, outstanding = time.monotonic(), self._thread is not None
        self.wait()
        waited_s = time.monotonic() - before
        if outstanding and waited_s > MATTERS_S and not self._is_wait_logged:
            self._is_wait_logged = True
            log.warning(
                "training waited %.1f s at step %d for the previous save; increase `every` in commit",
                waited_s,
                step,
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
            error.__cause__ = None  # The message is complete; stack traces of this thread would hide it.
            self._fail(step, error.with_traceback(None))
        except Exception as error:  # noqa: BLE001  # The next call raises it.
            self._fail(step, CheckpointError(f"saving step {step} failed: {type(error).__name__}: {error}"), error)

    def _fail(self, step: int, error: CheckpointError, cause: Exception | None = None) -> None:
        error.__cause__ = cause or error.__cause__
        self._failure = error
        log.error("could not save step %d; earlier checkpoints are unchanged: %s", step, error)
