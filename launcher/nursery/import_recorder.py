"""Records what a script imports until its process group forms, for a fork server that preloads it later.

A preloaded worker records from before the first line of its script. It watches where Python looks for modules
(`PathFinder.find_spec`), and restores Python's own function when it stops: `sys.meta_path` is unchanged, and no frame
of the recorder is in a traceback of the script.

A module is recorded if it is an installed package or of the standard library, and no other recorded module imports it.
With each come the names of what the script had changed before: environment variables, `sys.argv`, and the states in
`process_state.SCRIPTS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import Any, Final, NamedTuple

from launcher.nursery import process_state

MODULE_BODY: Final = "<module>"
"""The name of the frame in which a module is executed."""


class ImportedModule(NamedTuple):
    """A module that a script has imported from `file`, after it had `changed` this of its process."""

    name: str
    file: str
    changed: tuple[str, ...]


class Recording(NamedTuple):
    """What a script has imported, in that order, had `changed` at the end, and its `own` modules with their files."""

    modules: tuple[ImportedModule, ...]
    changed: tuple[str, ...]
    own: tuple[tuple[str, str], ...]


class ImportRecorder:
    """Records from `start` to `stop`."""

    def __init__(self, installed: tuple[str, ...]) -> None:
        """`installed`: the directories of the standard library and of installed packages."""
        self._installed = tuple(f"{folder}{os.sep}" for folder in installed)
        self._loaded: set[str] = set()
        self._found: dict[str, ImportedModule] = {}
        self._environ: Mapping[str, str] = {}
        self._state: Mapping[str, object] = {}
        self._arguments: list[str] = []
        self._pid = 0
        self._original: Any = None

    def start(self) -> None:
        """Start recording. The environment, `sys.argv` and the rest must be as the script will find them."""
        self._environ, self._arguments, self._pid = dict(os.environ), sys.argv[1:], os.getpid()
        self._loaded = set(sys.modules) - {"__main__"}
        self._state = process_state.state_of(process_state.SCRIPTS)
        self._original = original = vars(PathFinder)["find_spec"]
        find = original.__func__

        def find_spec(cls: type[PathFinder], fullname: str, *args: Any, **options: Any) -> ModuleSpec | None:
            spec: ModuleSpec | None = find(cls, fullname, *args, **options)
            if spec is not None:
                self._note(spec, sys._getframe(1))
            return spec

        PathFinder.find_spec = classmethod(find_spec)  # type: ignore[method-assign, assignment]

    def stop(self) -> Recording | None:
        """Stop, and return what was imported. None if it has stopped before, and in a process forked meanwhile."""
        if self._original is None:
            return None
        PathFinder.find_spec = self._original  # type: ignore[method-assign]
        self._original = None
        if os.getpid() != self._pid:
            return None
        # Some modules were only located, not imported.
        imported = [module for name, module in self._found.items() if name in sys.modules]
        return Recording(tuple(imported), self._changed(), tuple(self._own()))

    def _note(self, spec: ModuleSpec, frame: FrameType | None) -> None:
        file = spec.origin
        if spec.name in self._found or file is None or not file.startswith(self._installed):
            return
        if not self._imported_by_installed(frame):
            self._found[spec.name] = ImportedModule(spec.name, file, self._changed())

    def _imported_by_installed(self, frame: FrameType | None) -> bool:
        """Return whether the body of an installed module, which is being imported, has led to this import."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == MODULE_BODY and code.co_filename.startswith(self._installed):
                return frame.f_globals.get("__name__") != "__main__"
            frame = frame.f_back
        return False

    def _changed(self) -> tuple[str, ...]:
        environ = dict(os.environ)
        names = {name for name in environ.keys() | self._environ.keys() if environ.get(name) != self._environ.get(name)}
        names.update(process_state.differing(self._state, process_state.state_of(process_state.SCRIPTS)))
        if sys.argv[1:] != self._arguments:  # `python -m` itself changes the first argument.
            names.add(process_state.ARGUMENTS)
        return tuple(sorted(names))

    def _own(self) -> list[tuple[str, str]]:
        """Return the user's modules that were imported: those that are not installed.

        Modules of the fork server are not touched: each would cost a copy of its memory page.
        """
        new = sorted(sys.modules.keys() - self._loaded)
        files = {name: getattr(sys.modules.get(name), "__file__", None) for name in new}
        return [
            (name, os.path.abspath(file))
            for name, file in files.items()
            if isinstance(file, str) and not file.startswith(self._installed)
        ]
