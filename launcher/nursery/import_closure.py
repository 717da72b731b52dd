"""Finds the modules that the script of this node can import at all: its static import closure.

Names from other nodes are recommendations, and a fork server loads only those that are in the closure. Files are
located and read, but not executed: an import statement counts wherever it is, even in a function, and below
`if TYPE_CHECKING`, where packages that load their modules late have them. A name in a string does not count.

Standard library only: this runs in the fork server.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import (
    SOURCE_SUFFIXES,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from modulefinder import ModuleFinder
from opcode import opmap
from types import CodeType
from typing import Any, Final, NamedTuple

LIMIT_S: Final = 2.0
"""CPU time of one search. A script's imports are found in 0.05 s: only a name that does not exist takes all of it."""
FILES_MAX: Final = 5000
"""Files that one search reads: each may be on a slow disk. The closure of a script with `transformers` has 9,000."""
NAME_MAX: Final = 200
"""Characters in the name of a module."""
MAIN: Final = "__main__"
OF_USER, TOWARDS_WANTED, OTHERS = range(3)
"""The order in which files are read: those of the user, packages in which a wanted module is, and all others."""

IMPORT_NAME: Final = opmap["IMPORT_NAME"]

_finder: Final[Any] = ModuleFinder([])


class _Module(NamedTuple):
    """A module on the disk. `file` is "" if there is none to read; `places` are those of a package."""

    name: str
    file: str = ""
    places: tuple[str, ...] | None = None
    installed: bool = False

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        return self.name if self.places is not None else self.name.rpartition(".")[0]


def within(
    wanted: Collection[str],
    script: Sequence[str],
    folder: str | None,
    installed: tuple[str, ...],
    limit_s: float = LIMIT_S,
) -> set[str]:
    """Return the wanted modules that are installed, or part of Python, and in the import closure of the script.

    `script` is a path, or "-m" and a module, as on the command line of a worker; further arguments do not count.
    `folder` is where Python looks first, None if nowhere. `installed` are the directories of the standard library and
    of installed packages. Modules that are not found after `limit_s` seconds of CPU time are not in the result.
    """
    before = set(sys.path_importer_cache)
    try:
        places = [*([] if folder is None else [folder]), *sys.path]
        return _Search(wanted, places, tuple(f"{root}{os.sep}" for root in installed)).run(script, limit_s)
    finally:
        for place in sys.path_importer_cache.keys() - before:
            del sys.path_importer_cache[place]


def valid_name(name: str) -> bool:
    """Return whether this is the name of a module that a script can import."""
    parts = name.split(".")
    return len(name) <= NAME_MAX and MAIN not in parts and all(part.isidentifier() for part in parts)


class _Search:
    """One search: breadth first in each class of files."""

    def __init__(self, wanted: Collection[str], places: list[str], installed: tuple[str, ...]) -> None:
        self._places = places
        self._installed = installed
        self._known: dict[str, _Module | None] = {}
        self._reached = set[str]()
        self._queues: tuple[deque[_Module], ...] = (deque(), deque(), deque())
        self._wanted = {
            name for name in wanted if valid_name(name) and (found := self._module(name)) and found.installed
        }
        self._towards = {parent for name in self._wanted for parent in _with_parents(name)}

    def run(self, script: Sequence[str], limit_s: float) -> set[str]:
        ends_at, files = time.thread_time() + limit_s, 0
        self._begin(script)
        while not self._wanted <= self._reached and files < FILES_MAX and time.thread_time() < ends_at:
            queue = next((queue for queue in self._queues if queue), None)
            if queue is None:
                break
            files += 1
            self._read(queue.popleft())
        return self._wanted & self._reached

    def _begin(self, script: Sequence[str]) -> None:
        if script[0] != "-m":
            self._queues[OF_USER].append(_Module(MAIN, script[0]))
            return
        self._reach(script[1])
        self._reach(f"{script[1]}.{MAIN}")  # The main module of a package.

    def _read(self, module: _Module) -> None:
        code = _code(module)
        for name, members in _imports(code, module.package) if code is not None else ():
            self._reach(name)
            for member in members:
                self._reach(f"{name}.{member}")

    def _reach(self, name: str) -> None:
        """Note that a module is imported, and its parents; one that does not exist ends the chain."""
        if name in self._reached:
            return
        for part in _with_parents(name):
            module = self._module(part)
            if module is None:
                return
            if part in self._reached:
                continue
            self._reached.add(part)
            if module.file:
                kind = TOWARDS_WANTED if part in self._towards else OTHERS
                self._queues[kind if module.installed else OF_USER].append(module)

    def _module(self, name: str) -> _Module | None:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> _Module | None:
        parent, _, tail = name.rpartition(".")
        if not parent and (name in sys.builtin_module_names or FrozenImporter.find_spec(name) is not None):
            return _Module(name, installed=True)  # Every process has it, so its imports do not matter.
        places: Sequence[str] | None = self._places
        if parent:
            above = self._module(parent)
            places = above.places if above is not None else None
        if not places:
            return None
        try:
            spec = PathFinder.find_spec(
                tail, places
            )  # By its last part: a dotted name of a namespace needs its parent.
            return self._of_spec(name, spec) if spec is not None else None
        except Exception:  # noqa: BLE001  # A finder of the user may raise anything.
            return None

    def _of_spec(self, name: str, spec: ModuleSpec) -> _Module:
        inner = spec.submodule_search_locations
        file = spec.origin if spec.has_location and spec.origin else ""
        where = file or next(iter(inner or ()), "")
        readable = isinstance(spec.loader, SourceFileLoader | SourcelessFileLoader)
        return _Module(
            name,
            file if readable else "",
            None if inner is None else tuple(inner),
            os.path.normpath(where).startswith(self._installed),
        )


class _Reader(SourceFileLoader):
    """Takes code from Python's cache, and compiles what is missing there; it writes nothing."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Leave the cache unchanged."""


def _code(module: _Module) -> CodeType | None:
    """Return the code of a module, None if it cannot be read."""
    kind = _Reader if module.file.endswith(tuple(SOURCE_SUFFIXES)) else SourcelessFileLoader
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of the compiler.
            code: CodeType | None = kind(module.name, module.file).get_code(module.name)
    except Exception:  # noqa: BLE001  # The file may contain anything: an import would fail as well.
        return None
    return code


def _imports(code: CodeType, package: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the imports in code and in its functions: absolute names, and the names that are taken from each."""
    waiting = [code]
    while waiting:
        inner = waiting.pop()
        waiting += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
        if IMPORT_NAME not in inner.co_code[::2]:
            continue  # As in most functions; disassembling their code would take most of the time.
        for what, args in _finder.scan_opcodes(inner):
            if what == "absolute_import":
                members, name = args
                yield name, members or ()
            elif what == "relative_import":
                level, members, name = args
                parts = package.split(".")
                base = parts[: len(parts) - level + 1] if package else []
                if base:
                    yield ".".join((*base, *filter(None, [name]))), members or ()


def _with_parents(name: str) -> list[str]:
    """Return the packages that a module is in, from the outermost on, and the module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
