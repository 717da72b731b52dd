"""What a script imports until its process group is there, for a nursery that has it loaded before the next start.

A warm worker records from before the first line of its script. It watches where python looks for modules
(`PathFinder.find_spec`), and puts python's own function back when it is asked what was imported: `sys.meta_path` stays
as it is, and no frame of the recorder is in a traceback of the script.

A module is named if it is an installed package or of the standard library, and no other module that is named imports
it. With each come the names of the environment variables that the script had changed before.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType
from typing import Any, Final, NamedTuple

MODULES_MAX: Final = 300
"""More are not named; a script that imports as many by itself is not known."""
MODULE_BODY: Final = "<module>"
"""The name of the frame in which a module is executed."""


class ImportedModule(NamedTuple):
    """A module that a script has imported from `file`.

    `changed` are the environment variables that it had set, changed or deleted before. `moved`: it had changed
    `sys.argv` or `sys.path`.
    """

    name: str
    file: str
    changed: tuple[str, ...]
    moved: bool


class ImportRecorder:
    """Records from `start` to `stop`."""

    def __init__(self, installed: tuple[str, ...]) -> None:
        """`installed`: the folders of the standard library and of installed packages."""
        self._installed = tuple(f"{folder}{os.sep}" for folder in installed)
        self._found: dict[str, ImportedModule] = {}
        self._environ: dict[str, str] = {}
        self._places: tuple[list[str], list[str]] = ([], [])
        self._pid = 0
        self._original: Any = None

    def start(self) -> None:
        """Begin. The script must find its environment, `sys.argv` and `sys.path` as they are now."""
        self._environ, self._places, self._pid = dict(os.environ), (sys.argv[1:], [*sys.path]), os.getpid()
        self._original = original = vars(PathFinder)["find_spec"]
        find = original.__func__

        def find_spec(cls: type[PathFinder], fullname: str, *args: Any, **options: Any) -> ModuleSpec | None:
            spec: ModuleSpec | None = find(cls, fullname, *args, **options)
            if spec is not None:
                self._note(spec, sys._getframe(1))
            return spec

        PathFinder.find_spec = classmethod(find_spec)  # type: ignore[method-assign, assignment]

    def stop(self) -> tuple[ImportedModule, ...]:
        """End, and tell which modules were imported, in their order. A process that was forked meanwhile has none."""
        if self._original is None:
            return ()
        PathFinder.find_spec = self._original  # type: ignore[method-assign]
        self._original = None
        if os.getpid() != self._pid:
            return ()
        found = [module for name, module in self._found.items() if name in sys.modules]  # Others were looked for only.
        return tuple(found[:MODULES_MAX])

    def _note(self, spec: ModuleSpec, frame: FrameType | None) -> None:
        file = spec.origin
        if spec.name in self._found or file is None or not file.startswith(self._installed):
            return
        if self._imported_by_installed(frame):
            return
        environ = dict(os.environ)
        changed = {
            name for name in environ.keys() | self._environ.keys() if environ.get(name) != self._environ.get(name)
        }
        moved = (sys.argv[1:], sys.path) != self._places  # `python -m` itself changes the first word.
        self._found[spec.name] = ImportedModule(spec.name, file, tuple(sorted(changed)), moved)

    def _imported_by_installed(self, frame: FrameType | None) -> bool:
        """Tell whether the body of an installed module, which is being imported, has led to this import."""
        while frame is not None:
            code = frame.f_code
            if code.co_name == MODULE_BODY and code.co_filename.startswith(self._installed):
                return frame.f_globals.get("__name__") != "__main__"
            frame = frame.f_back
        return False
