"""What a module reads while it is imported, and how the import is throttled (see `learned`)."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from launcher.nursery.process_state import ARGUMENTS, ENTROPY, FOLDER

EVERY_VARIABLE: Final = "the whole environment"
METHODS: Final = ("__getitem__", "__iter__", "copy")
"""How a program reads `os.environ`: all of its other methods use these."""
IN_BETWEEN: Final = (
    "_collections_abc",
    "collections.abc",
    "numpy.random",
    "os",
    "posixpath",
    "random",
    "secrets",
    "tempfile",
    "uuid",
    __name__,
)
"""Modules through which another one reads."""


@contextlib.contextmanager
def noted_reads() -> Iterator[set[tuple[str, str]]]:
    """Record which modules read something that may differ in a worker, and what that is.

    It is the name of an environment variable, `EVERY_VARIABLE`, or one of `process_state`.
    """
    reads = set[tuple[str, str]]()
    with _variables(reads), _arguments(reads), _functions(reads):
        yield reads


@contextlib.contextmanager
def _variables(reads: set[tuple[str, str]]) -> Iterator[None]:
    kind = type(os.environ)
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
        yield
    finally:
        for name, original in before.items():
            setattr(kind, name, original)


class _Arguments(list[str]):
    """`sys.argv` during an import."""

    def __init__(self, reads: set[tuple[str, str]]) -> None:
        super().__init__([""])
        self._reads = reads

    def _noted(self) -> None:
        self._reads.add((_reader(sys._getframe(2)), ARGUMENTS))

    def __getitem__(self, key: Any) -> Any:
        self._noted()
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self._noted()
        return super().__iter__()

    def __contains__(self, key: object) -> bool:
        self._noted()
        return super().__contains__(key)

    def __len__(self) -> int:
        self._noted()
        return super().__len__()


@contextlib.contextmanager
def _functions(reads: set[tuple[str, str]]) -> Iterator[None]:
    """Note which module reads the working directory, or random numbers: it may store them."""
    replaced: list[tuple[Any, str, Any]] = []

    def note(home: Any, name: str, what: str, *, counts: Callable[..., bool] = lambda *args: True) -> None:
        original = getattr(home, name)

        @functools.wraps(original)
        def noting(*args: Any, **options: Any) -> Any:
            if counts(*args):
                reads.add((_reader(sys._getframe(1)), what))
            return original(*args, **options)

        replaced.append((home, name, original))
        setattr(home, name, noting)

    note(os, "getcwd", FOLDER)
    note(os, "urandom", ENTROPY)
    if (random := sys.modules.get("random")) is not None:
        note(random, "_urandom", ENTROPY)
        note(random.Random, "seed", ENTROPY, counts=lambda generator, seed=None, *rest: seed is None)
    try:
        yield
    finally:
        for home, name, original in replaced:
            setattr(home, name, original)


@contextlib.contextmanager
def _arguments(reads: set[tuple[str, str]]) -> Iterator[None]:
    """Note which module reads `sys.argv`, or stores it."""
    before, sys.argv = sys.argv, (watched := _Arguments(reads))
    references = sys.getrefcount(watched)
    try:
        yield
    finally:
        if sys.argv is not watched or sys.getrefcount(watched) > references:
            reads.add(("a module", ARGUMENTS))
        sys.argv = before


def _reader(frame: FrameType | None) -> str:
    while frame is not None:
        if (name := frame.f_globals.get("__name__", "")) not in IN_BETWEEN:
            return str(name)
        frame = frame.f_back
    return ""


class _Pause:
    """A finder that finds nothing, and gives the other processes of the host a turn before each module."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause

    def find_spec(self, *_: object) -> None:
        self._pause()


@contextlib.contextmanager
def paused(pause: Callable[[], None]) -> Iterator[None]:
    """Call `pause` before each module."""
    finder: Any = _Pause(pause)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
