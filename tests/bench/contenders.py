"""Ways to keep the state of a training, each in a worker of its own: what the checkpoint benchmark measures.

Every way keeps the same thing, a model and its Adam, and is asked to survive the same: once it says that the state is
safe, on disk it has been synced (fsync of the files; ours and torch.save also of the folder), in memory it outlives the
worker. Between two saves the optimizer makes a step, so that the state is another one and is not in the caches.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import elastic
from elastic.testing import reached, record
from tests.bench.model import Training

MEASURED = "measured"


class Copy:
    """The yardstick: one plain copy of so many bytes, in memory that is there already."""

    def __init__(self, size: int) -> None:
        self._source = torch.ones(size, dtype=torch.uint8)
        self._target = torch.zeros(size, dtype=torch.uint8)

    def seconds(self) -> tuple[float, float]:
        """Copy once: how long it took, and the processor time of it."""
        cpu_began = time.thread_time()
        took_s = seconds(lambda: self._target.copy_(self._source))
        return took_s, time.thread_time() - cpu_began


class Way:
    """A way to keep a training."""

    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder
        self.count = 0

    def begin(self) -> None:
        """What comes once, before the first save."""

    def save(self) -> None:
        """Save; training waits until this returns."""
        raise NotImplementedError

    def wait(self) -> None:
        """Return once what was saved is safe."""

    def tidy(self) -> None:
        """Remove what is too old, where the way itself does not. Not part of any time."""

    def restore(self) -> None:
        """Bring the training to what was saved last."""
        raise NotImplementedError


class OurDisk(Way):
    """state.commit(every=1): a copy, and the rest in the background; checksums are made, and verified when read."""

    commits: dict[str, int] = {"every": 1}  # noqa: RUF012

    def _begun(self) -> tuple[elastic.State, bool]:
        state = elastic.State(model=self.training.model, optimizer=self.training.optimizer)
        return state, state.restore(folder=self.folder, keep=1)

    def load_library(self) -> None:
        """Import all that a restore imports: torch, which the others need, is there already too."""
        for name in ("state", "checkpoint.replicated_part", "memory.transfer"):
            importlib.import_module(f"elastic.train.{name}")

    def begin(self) -> None:
        self.state, _ = self._begun()

    def save(self) -> None:
        self.state.commit(**self.commits)

    def wait(self) -> None:
        self.state.save()

    def restore(self) -> None:
        self.state, restored = self._begun()
        if not restored:
            raise RuntimeError("there was nothing to restore")


class OurMemory(OurDisk):
    """state.commit(memory_every=1): shared memory on the node."""

    commits = {"memory_every": 1}  # noqa: RUF012

    def wait(self) -> None:
        """It is safe once `commit` returns."""


class TorchSave(Way):
    """torch.save as a careful user has it: another name, fsync, rename, fsync of the folder. No checksums."""

    def save(self) -> None:
        staged = self.folder / "checkpoint.tmp"
        with staged.open("wb") as file:
            training = self.training
            torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        staged.rename(self.folder / "checkpoint.pt")
        handle = os.open(self.folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def restore(self) -> None:
        loaded = torch.load(self.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
        self.training.model.load_state_dict(loaded["model"])
        self.training.optimizer.load_state_dict(loaded["optimizer"])


class Dcp(Way):
    """torch.distributed.checkpoint as its guide has it. It syncs its files, and has no checksums.

    It reads into the tensors of the model and of the optimizer, which makes them for it.
    """

    def begin(self) -> None:
        dist.init_process_group("gloo")

    def parts(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.training.model, self.training.optimizer)
        return {"model": model, "optimizer": optimizer}

    def target(self) -> str:
        """The next folder."""
        self.count += 1
        return str(self.folder / f"step{self.count}")

    def save(self) -> None:
        state_dict_saver.save(self.parts(), checkpoint_id=self.target())

    def tidy(self) -> None:
        shutil.rmtree(self.folder / f"step{self.count - 1}", ignore_errors=True)

    def restore(self) -> None:
        parts = self.parts()
        state_dict_loader.load(parts, checkpoint_id=str(next(self.folder.glob("step*"))))
        set_state_dict(
            self.training.model,
            self.training.optimizer,
            model_state_dict=parts["model"],
            optim_state_dict=parts["optimizer"],
        )


class DcpAsync(Dcp):
    """dcp.async_save: a copy, and the rest in a thread."""

    def save(self) -> None:
        self.future: Future[Any] = state_dict_saver.async_save(  # type: ignore[assignment]
            self.parts(), checkpoint_id=self.target()
        )

    def wait(self) -> None:
        self.future.result()


WAYS: dict[str, Callable[[Training, Path], Way]] = {
    "memory tier": OurMemory,
    "disk tier": OurDisk,
    "torch.save + fsync": TorchSave,
    "dcp.save": Dcp,
    "dcp.async_save": DcpAsync,
}


def contend(name: str, size_mb: float, rounds: int, colds: int) -> None:
    """One worker: the first one saves `rounds` times after a warm-up and is killed, the others restore once each.

    The last `colds` workers read what is not in the page cache.
    """
    warnings.simplefilter("ignore")  # Torch's, of its own functions.
    torch.set_num_threads(1)
    folder = Path(os.environ["ELASTIC_CHECKPOINT_DIR"])
    generation = int(os.environ["ELASTIC_GENERATION"])
    training = Training(size_mb)
    way = WAYS[name](training, folder)
    if generation == 1:
        folder.mkdir(exist_ok=True)
        way.begin()
        record(_saves(training, way, rounds))
        record(training.place())
        reached(MEASURED)
        return
    if isinstance(way, OurDisk):
        way.load_library()
    cold = generation > 1 + rounds
    if cold:
        drop(folder)
    if isinstance(way, Dcp):
        way.begin()
    restore_s = seconds(way.restore)
    record({"cold": cold, "restore_s": restore_s, "place": training.place()})
    if generation < 1 + rounds + colds:
        reached(MEASURED)


def _saves(training: Training, way: Way, rounds: int) -> list[dict[str, float]]:
    found = []
    training.step()
    size = sum(tensor.nbytes for tensor in training.tensors())
    copy = Copy(size)
    for _ in range(rounds + 1):
        training.step()
        before_s, before_cpu_s = copy.seconds()
        cpu_began, began = time.thread_time(), time.perf_counter()
        way.save()
        blocked_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu_began
        way.wait()
        safe_s = time.perf_counter() - began
        way.tidy()
        after_s, after_cpu_s = copy.seconds()
        copy_s, copy_cpu_s = (before_s + after_s) / 2, (before_cpu_s + after_cpu_s) / 2
        found.append(
            {
                "bytes": size,
                "copy_s": copy_s,
                "blocked_s": blocked_s,
                "safe_s": safe_s,
                "copies": blocked_s / copy_s,
                "cpu_copies": cpu_s / copy_cpu_s,
            }
        )
    return found


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drop(folder: Path) -> None:
    """Take all files below a folder, which the disk has, out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
