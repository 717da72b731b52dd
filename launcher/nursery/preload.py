"""What a fork server imports, so that its workers find it loaded, and whether it may still fork them afterwards.

Guaranteed: a fork server with preloaded modules has one thread, no child, and no open GPU; otherwise it reports the
reason why it has preloaded nothing. The modules are those that a training step with DistributedDataParallel, an
optimizer, a DataLoader and the elastic library loads, even late: the first optimizer of a process imports
torch._dynamo, for a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from launcher.nursery import library_state
from launcher.nursery.warm_policy import NO_TORCH
from launcher.system.processes import has_children

FIRST = "torch"
MODULES = (
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.utils.data",
    "torch.utils.data.distributed",
    "torch.utils.checkpoint",
    "torch.utils.serialization.config",
    "torch.amp",
    "torch.profiler._cupti_monitor",
    "torch.distributed.algorithms.join",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.tensor",
    "numpy",
    "numpy.random",
)
"""Only those that exist are loaded: older versions of torch lack some of them, and numpy may be missing."""
OWN = ("elastic.channel.client", "elastic.environment", "elastic.script.relaunch")
"""Modules of the elastic library; in addition, everything in `elastic.train` except `LEFT_OUT` is loaded."""
LEFT_OUT = "ps"
"""It imports grpc, and few scripts use it."""
GPU_DEVICE_PATHS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
SAID_MAX = 2000
"""Bytes of the imports' output to stdout and stderr that are reported."""


class NotForkSafe(Exception):
    """This process must fork no worker that has not replaced its program; the text is the reason."""


class PreloadResult(NamedTuple):
    """The imports of a fork server: `said` is their output, `watched` the files that make it out of date.

    `added` are variables that modules of the user have set.
    """

    said: str
    watched: tuple[str, ...]
    added: dict[str, str]


def preload_modules(preload: Sequence[str], folder: str | None) -> PreloadResult:
    """Import everything. `folder` is where Python looks first, as it will in the workers. Raises `NotForkSafe`."""
    _check_names(folder)
    with importing(folder) as output:
        _import_ours()
        before = dict(os.environ)
        for name in preload:
            try:
                importlib.import_module(name)
            except BaseException as error:  # Even SystemExit: it is the user's module.
                raise NotForkSafe(f"--preload {name} cannot be imported ({_line(error)})") from error
            check_fit(f"--preload {name}")
        check_fit("importing torch")
        added = {name: text for name, text in os.environ.items() if before.get(name) != text}
        if preload:
            gc.collect()  # For torch's garbage a quarter of a second is not worth it; other modules may leave more.
    return PreloadResult(output.text, tuple(watched(preload)), added)


@contextlib.contextmanager
def importing(folder: str | None) -> Iterator[KeptOutput]:
    """Set up the surroundings of imports, so that they leave no trace; yields their output."""
    umask = os.umask(0)
    os.umask(umask)
    arguments, sys.argv = sys.argv, [""]
    if folder is not None:
        sys.path.insert(0, folder)
    gc.disable()  # Nothing of what is imported is garbage, and looking for it takes half of the time.
    try:
        output = KeptOutput()
        with _no_threads_in_libraries(), output.kept():
            yield output
        gc.freeze()  # Otherwise each worker's collector touches, and so copies, all that was imported: 0.5 s for each.
    finally:
        gc.enable()  # Only now, because the collector would traverse all of it once.
        if folder is not None:
            sys.path.remove(folder)
        sys.argv = arguments
        os.umask(umask)


def stamp(path: str) -> str:
    """Return the state of a file: another text means that it was changed. A missing file also has one."""
    try:
        found = os.stat(path)
    except OSError:
        return f":{path}"
    return f"{found.st_mtime_ns}.{found.st_size}.{found.st_ino}:{path}"


def _import_ours() -> None:
    try:
        importlib.import_module(FIRST)
    except ModuleNotFoundError as error:
        if error.name == FIRST:
            raise NotForkSafe(NO_TORCH) from error
        raise NotForkSafe(f"torch cannot be imported ({error})") from error
    except Exception as error:  # Whatever it is, each worker reports it with its traceback.
        raise NotForkSafe(f"torch cannot be imported ({_line(error)})") from error
    for name in (*MODULES, *OWN, *_of_train()):
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # This version has no such module, or not all that it needs.
        except Exception as error:  # A script that needs it reports it with its traceback.
            raise NotForkSafe(f"{name} cannot be imported ({_line(error)})") from error


def _of_train() -> Iterator[str]:
    train = importlib.import_module("elastic.train")
    for place in train.__path__:
        for path in sorted(Path(place).rglob("[!_]*.py")):
            inner = path.relative_to(place).with_suffix("").parts
            if inner[0] != LEFT_OUT:
                yield ".".join((train.__name__, *inner))


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _check_names(folder: str | None) -> None:
    """Check that no module in the script's own directory has the name of one that is already loaded."""
    if folder is None:
        return
    for name in sorted({module.partition(".")[0] for module in sys.modules}):
        spec = PathFinder.find_spec(name, [folder]) if name not in ("__main__", "launcher") else None
        if spec is None or spec.origin is None or name in sys.builtin_module_names:
            continue
        loaded_from = getattr(sys.modules.get(name), "__file__", None)
        if loaded_from is None or not os.path.samefile(loaded_from, spec.origin):
            raise NotForkSafe(f"{spec.origin} has the name of a module that the launcher uses")


def check_fit(who: str) -> None:
    """Raise `NotForkSafe` if `who` has left a thread, a process or an open GPU."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) > 1:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        names = names or [
            Path(f"/proc/self/task/{task}/comm").read_text(errors="replace").strip()
            for task in tasks
            if int(task) != os.getpid()
        ]
        raise NotForkSafe(f"{who} left a thread running ({names[0]})")
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if target.startswith(GPU_DEVICE_PATHS):
                raise NotForkSafe(f"{who} opened a GPU ({target})")
    if has_children():
        raise NotForkSafe(f"{who} left a process running")


@contextlib.contextmanager
def _no_threads_in_libraries() -> Iterator[None]:
    """Keep libraries from starting threads when they are loaded, by their variables.

    Workers get those of OpenBLAS back (`library_state`); Arrow's jemalloc works without its thread.
    """
    before = {name: os.environ.get(name) for name in NO_THREADS}
    os.environ.update(NO_THREADS)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


class KeptOutput:
    """What is written to stdout and stderr, even by C: it belongs to no worker's log."""

    def __init__(self) -> None:
        self._memory = os.memfd_create("imports")
        self.text = ""
        """The beginning of the output, once the capture has ended."""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Capture the output."""
        real = (os.dup(1), os.dup(2))
        _flush()
        os.dup2(self._memory, 1)
        os.dup2(self._memory, 2)
        try:
            yield
        finally:
            _flush()
            for number, before in enumerate(real, 1):
                os.dup2(before, number)
                os.close(before)
            self.text = os.pread(self._memory, SAID_MAX, 0).decode(errors="replace")
            os.close(self._memory)

    def size(self) -> int:
        """Bytes that were written until now."""
        _flush()
        return os.fstat(self._memory).st_size


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # A module may have closed or replaced it.
            stream.flush()
    ctypes.PyDLL(None).fflush(None)


def watched(preload: Iterable[str]) -> Iterator[str]:
    """Yield stamps of the files that may well change while the job runs: the user's own, and those of `--preload`."""
    fixed = (*library_state.installed(), library_state.home())
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (name in preload or not file.startswith(tuple(f"{one}{os.sep}" for one in fixed))):
            yield stamp(file)
