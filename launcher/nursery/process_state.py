"""What an import can change in its process, apart from modules and the environment, to detect whether it has.

Standard library only. Nothing is imported for it: a module that is not loaded has no state.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

ARGUMENTS: Final = "sys.argv"
FILTERS: Final = "warnings.filters"
LOCALE: Final = "the locale"
FOLDER: Final = "the working directory"
ENTROPY: Final = "random numbers of the system"
RANDOM: Final = "the seed of random numbers"
DRAWN_MAX: Final = 10_000
METHOD: Final = "the start method of multiprocessing"


def _module(name: str) -> Any:
    return sys.modules.get(name)


def _locale() -> object:
    import _locale

    return _locale.setlocale(_locale.LC_ALL, None)


def _start_method() -> object:
    context = _module("multiprocessing.context")
    return None if context is None else context._default_context._actual_context


def _filters() -> object:
    warnings = _module("warnings")
    return None if warnings is None else [*warnings.filters]


def _root_logger() -> object:
    logging = _module("logging")
    return None if logging is None else (logging.root.level, [*logging.root.handlers], logging.root.manager.disable)


def _umask() -> object:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _random() -> object:
    numpy, torch = map(_module, ("numpy.random", "torch"))
    return (
        None if numpy is None else [str(part) for part in numpy.get_state()],
        None if torch is None else torch.default_generator.get_state().tolist(),
    )


def _random_of_python() -> object:
    random = _module("random")
    return None if random is None else random.getstate()


def _drawn(before: Any, now: Any) -> bool:
    """Return whether Python's generator went from one state to the other by drawing numbers: it was not seeded."""
    if before is None:
        return True  # It is new, and its first state differs in each process.
    generator = _module("random").Random()
    generator.setstate(before)
    for _ in range(DRAWN_MAX):
        generator.getrandbits(32)
        if generator.getstate() == now:
            return True
    return False


def _open_files() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue  # It was the directory itself.
    return found


STATES: Final[Mapping[str, Callable[[], object]]] = {
    FILTERS: _filters,
    LOCALE: _locale,
    METHOD: _start_method,
    "sys.path": lambda: [*sys.path],
    "the root logger": _root_logger,
    "a signal handler": lambda: [signal.getsignal(number) for number in signal.valid_signals()],
    "sys.excepthook": lambda: (sys.excepthook, sys.unraisablehook, sys.displayhook),
    FOLDER: os.getcwd,
    "the umask": _umask,
    "the state of random numbers": _random,
    RANDOM: _random_of_python,
    "the open files": _open_files,
}
"""The states that are compared; messages use these names."""
SCRIPTS: Final = (FILTERS, LOCALE, METHOD, FOLDER)
"""The states that a script may change before an import."""
IMPORTS: Final = (FILTERS, LOCALE)
"""The states that an import may change, if the script has not changed them before."""


def state_of(names: tuple[str, ...] = tuple(STATES)) -> dict[str, object]:
    """Return the present states of these."""
    return {name: STATES[name]() for name in names}


def differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the names under which two states differ."""
    names = [name for name in before if before[name] != now[name]]
    return [name for name in names if name != RANDOM or not _drawn(before[name], now[name])]
