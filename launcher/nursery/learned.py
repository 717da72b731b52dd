"""Load in a fork server what scripts have imported, exactly as a script would find it; raise `Unfit` if it cannot.

A module is unfit if only the script's process may load it. That is the case if during its import it

- reads an environment variable that differs in a worker, or that the script changes before, or `sys.argv`;
- changes what each worker must have separately (signal handlers, random numbers, open files ...), or what the script
  has changed before (filters of warnings, the locale);
- starts a thread or a process, opens a GPU, or writes to stdout or stderr;
- is not the file that the script had, or imports one of the user's own.

Code in C can read a variable unnoticed. So the reads of each loaded library are either known (`REVIEWED`), or its file
must contain none of these variables' names, and not the symbol `environ`, with which all of them can be read.

The process that raises is unusable afterwards: another one loads the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from launcher.nursery import import_closure, library_state, process_state
from launcher.nursery.import_watch import EVERY_VARIABLE, noted_reads, paused
from launcher.nursery.preload import NotForkSafe, check_fit, importing, watched
from launcher.nursery.protocol import ModuleToLoad, PrepareSuccessor

OF_ONE_WORKER: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
)
OF_ONE_WORKER_BEGINNINGS: Final = ("ELASTIC_", "TORCHELASTIC_", "PADDLE_")
"""Variables that belong to one worker, whatever their value here."""
REVIEWED: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "PIL",
            "_yaml",
            "charset_normalizer",
            "contourpy",
            "kiwisolver",
            "markupsafe",
            "numpy",
            "numpy.libs",
            "pandas",
            "pillow.libs",
            "regex",
            "safetensors",
            "scipy",
            "sklearn",
            "xxhash",
            "yaml",
        ),
        (),
    ),
    "matplotlib": ("FREETYPE_",),
    "pyarrow": ("ARROW_", "AZURE_LOG_LEVEL", "JE_ARROW_", "OPENSSL_", "SSLKEYLOGFILE"),
    "scikit_learn.libs": ("GOMP_", "OMP_"),
    "scipy.libs": ("GFORTRAN_", "GOTO_", "OMP_", "OPENBLAS_"),
    "tokenizers": ("CLICOLOR", "NO_COLOR", "RUST_LOG", "TOKENIZERS_LOG"),
    "torch": ("TORCH", "PYTORCH", "OMP_", "KMP_", "MKL_"),
}
"""Directories of installed packages, and the beginnings of the names that their libraries read when they are loaded, as
observed by counting the calls of getenv. tests/process/nursery/test_learned_packages.py compares both kinds of
start."""
DYNLOAD: Final = "lib-dynload"
"""The directory of Python's own extension modules."""
MEMORY_MAX: Final = 1 << 30
"""Bytes that the modules of a script may take, in addition to those of the fork server."""
SLICE_S: Final = 0.02
"""A successor works for about this time before it sleeps."""


class Known(NamedTuple):
    """A module whose import reads something that differs in a worker, and how that is corrected.

    `reads` are the prefixes of the variables that it uses. `again` is code that a worker runs before its script, in the
    namespace of the module; "" if the module stores nothing that it has read.
    """

    reads: tuple[str, ...] = ()
    again: str = ""


KNOWN: Final[Mapping[str, Known]] = {
    "datasets.fingerprint": Known(again="fingerprint_rng.seed()"),
    "fsspec.config": Known(("FSSPEC_",)),
    "joblib._multiprocessing_helpers": Known(),
    "lightning.fabric.utilities.rank_zero": Known(again="rank_zero_only.rank = _get_rank() or 0"),
    "multiprocess.process": Known(again="current_process().authkey, ORIGINAL_DIR = os.urandom(32), os.getcwd()"),
    "scipy.stats._distribution_infrastructure": Known(),
    "torchmetrics.utilities.prints": Known(again="rank_zero_only.rank = int(os.environ.get('LOCAL_RANK', 0))"),
    "transformers.utils.hub": Known(again="SESSION_ID = uuid4().hex"),
}


class Unfit(NotForkSafe):
    """This module must not be loaded before the script imports it; the text is the reason."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class Surroundings(NamedTuple):
    """What `load` needs of the process that it works in.

    `installed` are the directories of the standard library and of installed packages. `begins` is called with the name
    of each module before it is imported, `pause` now and then in between; `written` returns how many bytes were written
    to stdout and stderr.
    """

    installed: tuple[str, ...]
    begins: Callable[[str], None]
    pause: Callable[[], None]
    written: Callable[[], int]


class Learned(NamedTuple):
    """What a successor has `loaded`: as `PreloadResult`, and the variables that its modules have `read`.

    "A_*" represents all that begin with "A_".
    """

    said: str
    watched: tuple[str, ...]
    added: dict[str, str]
    loaded: tuple[str, ...]
    read: frozenset[str]


def load_learned(order: PrepareSuccessor, folder: str | None, begins: Callable[[str], None]) -> Learned:
    """Import what a script has imported, in a process that has imported the rest. Raises `Unfit`.

    `folder` is where Python looks first; `begins` as in `Surroundings`.
    """
    installed = (*library_state.installed(), library_state.home())
    with importing(folder) as output, _bounded_memory():
        before = dict(os.environ)
        if order.within:
            names = {module.name for module in order.modules}
            reachable = import_closure.within(names, order.within, folder, installed)
            order = order._replace(modules=tuple(module for module in order.modules if module.name in reachable))
        read = load(order, Surroundings(installed, begins, _Throttle(order.share).pause, output.size))
        added = {name: text for name, text in os.environ.items() if before.get(name) != text}
    loaded = tuple(module.name for module in order.modules)
    return Learned(output.text, tuple(watched(())), added, loaded, read)


class _Throttle:
    """Leaves a core to others: a process sleeps in proportion to the time that it has worked.

    Workers would inherit a low priority, and an ordinary user cannot raise it again.
    """

    def __init__(self, share: float) -> None:
        """The process takes this share of a core."""
        self._rest = 1 / share - 1
        self._used_s = time.process_time()

    def pause(self) -> None:
        """Called often; sleeps now and then."""
        used_s = time.process_time() - self._used_s
        if used_s > SLICE_S and self._rest > 0:
            time.sleep(used_s * self._rest)
            self._used_s = time.process_time()


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """Return a context in which an import that takes more than `MEMORY_MAX` fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = (int(status["VmData"].split()[0]) << 10) + MEMORY_MAX
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def load(order: PrepareSuccessor, around: Surroundings) -> frozenset[str]:
    """Import the modules of the order, in their order; return the environment variables that they have read."""
    read, before = set[str](), _state()
    for module in order.modules:
        around.begins(module.name)
        ours = _differing(before, _state())  # These modules changed it in the script, too.
        read |= _load_one(module._replace(changed=tuple(set(module.changed).difference(ours))), order, around)
    return frozenset(read)


def set_right(modules: Mapping[str, Any]) -> None:
    """In a worker, before its script: let modules that have read what differs in a worker read it again."""
    for name, known in KNOWN.items():
        if known.again and name in modules:
            exec(known.again, vars(modules[name]))


class _ImportState(NamedTuple):
    environ: dict[str, str]
    rest: dict[str, object]


def _state() -> _ImportState:
    return _ImportState(dict(os.environ), process_state.state_of())


def _differing(before: _ImportState, now: _ImportState) -> list[str]:
    names = [
        name for name in before.environ.keys() | now.environ.keys() if before.environ.get(name) != now.environ.get(name)
    ]
    return names + process_state.differing(before.rest, now.rest)


def _load_one(module: ModuleToLoad, order: PrepareSuccessor, around: Surroundings) -> set[str]:
    """Import one; return the variables that were read."""
    loaded, libraries, written = set(sys.modules), library_state.loaded_libraries(), around.written()
    state = _state()
    with noted_reads() as reads, paused(around.pause):
        try:
            importlib.import_module(module.name)
        except BaseException as error:  # Even SystemExit: a module may do anything.
            raise Unfit(module.name, f"cannot be imported ({type(error).__name__}: {error})") from error
    new, new_libraries = sys.modules.keys() - loaded, library_state.loaded_libraries() - libraries
    changed = {*order.differing, *module.changed}
    try:
        set_right({name: sys.modules[name] for name in new})
    except Exception as error:  # Another version of it has no such name.
        raise Unfit(module.name, f"imports what cannot be corrected in a worker ({error})") from error
    for why in (
        *_why_reads(reads, changed),
        *_why_states(process_state.differing(state.rest, process_state.state_of()), changed),
        *_why_environ(state.environ, changed),
        *_why_files(module, new, order, tuple(f"{folder}{os.sep}" for folder in around.installed)),
        *_why_libraries(new_libraries, changed, around.installed),
    ):
        raise Unfit(module.name, why)
    if around.written() != written:
        raise Unfit(module.name, "writes to stdout or stderr when it is imported")
    try:
        check_fit(module.name)
    except NotForkSafe as error:
        raise Unfit(module.name, str(error)) from error
    read = {variable for reader, variable in reads if reader not in KNOWN and variable != process_state.FOLDER}
    read |= {f"{beginning}*" for reader, _ in reads if reader in KNOWN for beginning in KNOWN[reader].reads}
    folders = {_folder(path, around.installed) for path in new_libraries}
    return read | {f"{beginning}*" for folder in folders for beginning in REVIEWED.get(folder, ())}


# Why a module is unfit.


def _why_reads(reads: Collection[tuple[str, str]], changed: Collection[str]) -> Iterator[str]:
    for reader, variable in sorted(reads, key=lambda read: (read[1] != EVERY_VARIABLE, read)):
        known = KNOWN.get(reader)
        if known is None:
            counts = variable == EVERY_VARIABLE or variable in changed or _of_one_worker(variable)
        else:
            counts = bool(known.reads) and any(name.startswith(known.reads) for name in changed)
        if counts or (known is None and variable in (process_state.ARGUMENTS, process_state.ENTROPY)):
            yield f"{reader} reads {variable} when it is imported"


def _of_one_worker(variable: str) -> bool:
    return variable in OF_ONE_WORKER or variable.startswith(OF_ONE_WORKER_BEGINNINGS)


def _why_environ(before: Mapping[str, str], changed: Collection[str]) -> Iterator[str]:
    """A variable that a module sets is set in the workers too; one that exists already may differ in them."""
    for name in sorted(before.keys() | os.environ.keys()):
        if os.environ.get(name) != before.get(name) and (name in before or name in changed or _of_one_worker(name)):
            yield f"changes {name} when it is imported"


def _why_states(differing: Collection[str], changed: Collection[str]) -> Iterator[str]:
    for name in differing:
        if name in changed:
            yield f"changes {name} when it is imported, which the script has changed before"
        elif name not in process_state.IMPORTS:
            yield f"changes {name} when it is imported"


def _why_files(
    module: ModuleToLoad, new: Collection[str], order: PrepareSuccessor, folders: tuple[str, ...]
) -> Iterator[str]:
    for name in sorted(new):
        if name in order.own:
            yield f"imports {name}, which is also the name of one of the script's own modules"
        file = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if isinstance(file, str) and os.path.isabs(file) and not file.startswith(folders):
            yield f"imports {name} from {file}"
    origin = getattr(getattr(sys.modules[module.name], "__spec__", None), "origin", None)
    if module.file and origin != module.file:
        yield f"is {origin} here, and {module.file} in the script"


def _why_libraries(new: Collection[str], changed: Collection[str], installed: tuple[str, ...]) -> Iterator[str]:
    """Libraries in C that may read what differs in a worker: the reviewed ones that do, others that have its name."""
    for path in sorted(new):
        folder = _folder(path, installed)
        if folder == DYNLOAD:
            continue
        reads = REVIEWED.get(folder)
        if reads is None:
            variable = _named_in(Path(path), changed)
        else:
            variable = next((name for name in sorted(changed) if name.startswith(reads)), "") if reads else ""
        if variable:
            yield f"loads {path}, which may read {variable}"


def _folder(path: str, installed: tuple[str, ...]) -> str:
    """Return the directory of an installed package that has this file, "" if none has."""
    inside = max((place for place in installed if path.startswith(f"{place}{os.sep}")), key=len, default="")
    return path[len(inside) + 1 :].partition(os.sep)[0] if inside else ""


def _named_in(file: Path, changed: Collection[str]) -> str:
    """Return the variable whose name is in this file, `EVERY_VARIABLE` if it reads them all, "" if it reads none."""
    content = file.read_bytes().decode("latin-1")
    if re.search("[\0_]environ\0", content):  # Symbols of the C library: environ, _environ, __environ.
        return EVERY_VARIABLE
    names = "|".join([*OF_ONE_WORKER, *OF_ONE_WORKER_BEGINNINGS, *(name for name in changed if name.isidentifier())])
    found = re.search(f"(?<![A-Z_])(?:{names})", content)
    return found[0] if found else ""
