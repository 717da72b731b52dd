"""Load in a nursery what scripts have imported, exactly as a script would find it. Raises `Unfit` where it cannot.

A module is unfit if another process than the script must not have loaded it: while it is imported, it reads an
environment variable that is another one in a worker, or that the script changes before; it starts a thread or a
process, or opens a GPU; it, or a module that it imports, is not the file that the script had. The process that raises
is of no use any more: its successor loads the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

from launcher.nursery.preload import NotForkSafe, check_fit
from launcher.nursery.protocol import ModuleToLoad

EVERY_VARIABLE: Final = "the whole environment"
METHODS: Final = ("__getitem__", "__iter__", "copy")
"""How a program reads `os.environ`: all of its other methods use these."""
IN_BETWEEN: Final = ("os", "collections.abc", "_collections_abc", __name__)
"""Modules through which another one reads a variable."""


class Known(NamedTuple):
    """A module that reads variables of a worker when it is imported, and what makes up for that.

    `reads` are the beginnings of the names that count to it. `again` is run in a worker before its script.
    """

    reads: tuple[str, ...]
    again: str = ""


KNOWN: Final[Mapping[str, Known]] = {
    "fsspec.config": Known(("FSSPEC_",)),
    "lightning.fabric.utilities.rank_zero": Known((), "rank_zero_only.rank = _get_rank() or 0"),
    "torchmetrics.utilities.prints": Known((), "rank_zero_only.rank = int(os.environ.get('LOCAL_RANK', 0))"),
}


class Unfit(NotForkSafe):
    """This module must not be loaded before the script asks for it; the text says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


def load(
    modules: Sequence[ModuleToLoad], own: Collection[str], installed: tuple[str, ...], pause: Callable[[], None]
) -> None:
    """Import the modules in their order.

    `own` are the variables that a worker has and this process has not, or that differ; `installed` the folders of the
    standard library and of installed packages. `pause` is called now and then between two modules.
    """
    folders = tuple(f"{folder}{os.sep}" for folder in installed)
    for module in modules:
        known = set(sys.modules)
        with _read_variables() as reads, _paused(pause):
            try:
                importlib.import_module(module.name)
            except BaseException as error:  # Also SystemExit: whatever the module does.
                raise Unfit(module.name, f"cannot be imported ({type(error).__name__}: {error})") from error
        for reader, variable in sorted(reads):
            if _counts(reader, variable, {*own, *module.changed}):
                raise Unfit(module.name, f"{reader} reads {variable} when it is imported")
        for name in sys.modules.keys() - known:
            if other := _other_file(name, folders):
                raise Unfit(module.name, f"imports {name} from {other}")
        origin = getattr(getattr(sys.modules[module.name], "__spec__", None), "origin", None)
        if origin != module.file:
            raise Unfit(module.name, f"is {origin} here, and {module.file} in the script")
        try:
            check_fit(module.name)
        except NotForkSafe as error:
            raise Unfit(module.name, str(error)) from error


def _other_file(name: str, folders: tuple[str, ...]) -> str:
    """The file of a module that is neither installed nor part of python, "" if it is."""
    file = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return file if isinstance(file, str) and os.path.isabs(file) and not file.startswith(folders) else ""


def _counts(reader: str, variable: str, changing: Collection[str]) -> bool:
    """Tell whether a module that has read a variable may be another one in the script."""
    known = KNOWN.get(reader)
    if known is None:
        return variable in changing or variable == EVERY_VARIABLE
    return any(name.startswith(known.reads) for name in changing) if known.reads else False


@contextlib.contextmanager
def _read_variables() -> Iterator[set[tuple[str, str]]]:
    """The modules that read environment variables, and which; `EVERY_VARIABLE` if all of them are."""
    reads, kind = set[tuple[str, str]](), type(os.environ)
    before = {name: vars(kind)[name] for name in METHODS}

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(environ: Any, *args: Any) -> Any:
            variable = os.fsdecode(args[0]) if args and isinstance(args[0], str | bytes) else EVERY_VARIABLE
            reads.add((_reader(sys._getframe(1)), variable))
            return original(environ, *args)

        return method

    for name, original in before.items():
        setattr(kind, name, noting(original))
    try:
        yield reads
    finally:
        for name, original in before.items():
            setattr(kind, name, original)


def _reader(frame: FrameType | None) -> str:
    while frame is not None:
        if (name := frame.f_globals.get("__name__", "")) not in IN_BETWEEN:
            return str(name)
        frame = frame.f_back
    return ""


class _Pause:
    """A finder that finds nothing, and gives the other processes of the machine a turn before each module."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    def find_spec(self, *_: object) -> None:
        self._pause()


@contextlib.contextmanager
def _paused(pause: Callable[[], None]) -> Iterator[None]:
    finder: Any = _Pause(pause)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
