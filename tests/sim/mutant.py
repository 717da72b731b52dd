"""One mutation of the core in a fresh process: the broken text is compiled in the place of the file, and seeds are run.

This module imports nothing of the core by itself, so that whatever is imported later is broken as asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from tests.sim.mutations import Mutation

ROOT = Path(__file__).parents[2]


class Found(NamedTuple):
    """The seed that found a mutation, and what it says; None if no seed did, of so many."""

    name: str
    seed: int | None
    said: str
    tried: int


class Broken(MetaPathFinder):
    """Finds one module of the core, and compiles it from the broken text. Its file stays as it is."""

    def __init__(self, mutation: Mutation) -> None:
        self._path = ROOT / mutation.file
        self._module = mutation.file.removesuffix(".py").replace("/", ".")
        whole = self._path.read_text()
        times = whole.count(mutation.text)
        if times != 1:
            raise LookupError(
                f"{mutation.file} has {mutation.text!r} {times} times and not once: write {mutation.name!r} anew"
            )
        self._text = whole.replace(mutation.text, mutation.instead)
        compile(self._text, str(self._path), "exec", dont_inherit=True)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Give the broken module, and leave all others to whoever comes next."""
        if fullname != self._module:
            return None
        return spec_from_loader(fullname, _Loader(fullname, self._path, self._text))


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: Path, text: str) -> None:
        super().__init__(fullname, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


def find(mutation: Mutation, seeds: Iterable[int]) -> Found:
    """Run seeds with this mutation until one breaks a promise, or the core raises. Once in the life of a process."""
    if (already := [name for name in sys.modules if name.startswith("elastic.core")]) != []:
        raise RuntimeError(f"{already[0]} is imported already, unbroken")
    sys.meta_path.insert(0, Broken(mutation))
    from tests.sim.many import one, settle_memory

    settle_memory()
    tried = 0
    for seed in seeds:
        tried += 1
        if violation := one(seed).violation:
            return Found(mutation.name, seed, violation, tried)
    return Found(mutation.name, None, "", tried)
