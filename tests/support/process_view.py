"""What python shows of a process, written down as JSON: a script imports this file from its own folder, as `view`.

Run by scripts that are started warm and cold: it must import nothing of ours.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEPTH = 3
TEXT_MAX = 200
ITEMS_MAX = 2000
OTHERS = ("__main__", "elastic", "launcher", "numpy", "sympy", "torch", "view")
"""Packages whose values are not compared: the fork server has loaded them, or they are ours."""
SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def write(moment: str, before: list[str]) -> None:
    """Write the view of this process to a file in the folder VIEWS, named after its generation and rank.

    `before` are the modules that it had before its first line.
    """
    name = f"{os.environ['ELASTIC_GENERATION']}.{os.environ['RANK']}.{moment}"
    view = {"before": before, "seen": _seen(), "values": dict(_values())}
    Path(os.environ["VIEWS"], name).write_text(json.dumps(view))


def _seen() -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    return {
        "modules": sorted(sys.modules),
        "filters": [_filter(one) for one in warnings.filters],
        "showwarning": str(warnings.showwarning.__module__),
        "logging": {"root": _logger(logging.getLogger()), **dict(_loggers())},
        "log handlers": sorted(str(type(one())) for one in logging._handlerList),  # type: ignore[attr-defined]
        "log record": [str(logging.getLogRecordFactory()), str(logging.getLoggerClass()), logging.root.manager.disable],
        "atexit": atexit._ncallbacks(),
        "finalizers": sum(finalizer.atexit for finalizer in list(weakref.finalize._registry)),  # type: ignore[attr-defined]
        "signals": {str(one): str(signal.getsignal(one)) for one in signal.valid_signals()},
        "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "locale": locale.setlocale(locale.LC_ALL),
        "environ": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "meta_path": [str(one).partition(" at 0x")[0] for one in sys.meta_path],
        "path_hooks": [str(one).partition(" at 0x")[0] for one in sys.path_hooks],
        "hooks": [
            str(one).partition(" at 0x")[0]
            for one in (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook)
        ],
        "cwd": os.getcwd(),
        "umask": umask,
        "start method": multiprocessing.get_start_method(allow_none=True),
        "threads": [thread.name for thread in threading.enumerate()],
        "tasks": sorted(_tasks()),
        "descriptors": sorted(_descriptors()),
        "children": len(multiprocessing.active_children()),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:6] == "RLIMIT"},
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), [str(one) for one in gc.callbacks]],
        "streams": [
            [stream is original, stream.encoding, stream.line_buffering, getattr(stream, "write_through", None)]
            for stream, original in ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))
        ],
        "torch": _torch(),
        "numpy": _numpy(),
        "thread pools": _pools(),
        "tracing": [str(sys.gettrace()), str(sys.getprofile())],
        "builtins": sorted(vars(sys.modules["builtins"])),
    }


def _filter(one: Any) -> list[str]:
    action, message, category, module, line = one
    return [action, getattr(message, "pattern", ""), category.__name__, getattr(module, "pattern", ""), str(line)]


def _loggers() -> Iterator[tuple[str, Any]]:
    for name, logger in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, _logger(logger)


def _logger(logger: logging.Logger) -> list[Any]:
    handlers = [[type(one).__name__, one.level, _stream(one), str(_format(one))] for one in logger.handlers]
    return [logger.level, logger.propagate, logger.disabled, handlers, len(logger.filters)]


def _format(handler: logging.Handler) -> str | None:
    return handler.formatter._fmt if handler.formatter is not None else None


def _stream(handler: logging.Handler) -> str:
    stream = getattr(handler, "stream", None)
    if stream is None:
        return ""
    names = [name for name in ("stdout", "stderr", "__stdout__", "__stderr__") if stream is getattr(sys, name)]
    return ", ".join(names) or "another stream"


def _tasks() -> Iterator[str]:
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            yield Path(f"/proc/self/task/{task}/comm").read_text().strip()


def _descriptors() -> Iterator[str]:
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # That of the listing.
        yield f"{fd} {target.partition(':')[0]} {os.get_inheritable(int(fd))}"


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return [
        torch.get_num_threads(),
        str(torch.get_default_dtype()),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.cuda.is_initialized(),
        torch.multiprocessing.get_sharing_strategy(),
        torch.backends.cudnn.benchmark,
        torch.backends.mkldnn.enabled,
    ]


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy and [numpy.geterr(), {key: str(one) for key, one in numpy.get_printoptions().items()}]


def _pools() -> Any:
    if (pools := sys.modules.get("threadpoolctl")) is None:
        return None
    return sorted(
        [one["internal_api"], one["num_threads"], Path(one["filepath"]).name] for one in pools.threadpool_info()
    )


def _values() -> Iterator[tuple[str, str]]:
    """The simple values that modules hold, in their variables, classes, functions and objects."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in OTHERS or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if key.startswith("__"):
                continue
            yield from _held(f"{name}.{key}", value, name, 0)


def _held(where: str, value: object, module: str, depth: int) -> Iterator[tuple[str, str]]:
    if (text := _text(value)) is not None:
        yield where, text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + hashlib.sha256(text.encode()).hexdigest()
        return
    if depth == DEPTH or isinstance(value, types.ModuleType) or value is os.environ:
        return
    if isinstance(value, type | types.FunctionType):
        inner = vars(value) if value.__module__ == module else {}
    else:
        inner = getattr(value, "__dict__", {}) if type(value).__module__ not in ("builtins", "typing") else {}
    try:
        items = list(inner.items())[:ITEMS_MAX]
    except Exception:  # noqa: BLE001  # An object of another library may have any `__dict__`.
        return
    for key, one in items:
        if isinstance(key, str) and not key.startswith("__"):
            yield from _held(f"{where}.{key}", one, module, depth + 1)


def _text(value: object, depth: int = 0) -> str | None:
    """A value that is the same text in each process that has the same value; None if it is not so simple."""
    kind = type(value)
    if depth > DEPTH:
        return None
    if isinstance(value, SIMPLE):
        base: Any = next(base for base in SIMPLE if isinstance(value, base))
        return f"{kind.__name__} {base.__repr__(value)}"
    if kind in (list, tuple, set, frozenset, dict) and len(value) <= ITEMS_MAX:  # type: ignore[arg-type]
        parts = list(value.items()) if kind is dict else list(value)  # type: ignore[attr-defined, call-overload]
        texts = [_text(part, depth + 1) for part in parts]
        if None in texts:
            return None
        return f"{kind.__name__} {sorted(map(str, texts)) if kind in (set, frozenset) else texts}"
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return f"random state {hash(value.getstate())}"
    name = f"{kind.__module__}.{kind.__name__}"
    if name == "numpy.random.mtrand.RandomState":
        return f"random state {value.get_state()}"  # type: ignore[attr-defined]
    if name == "numpy.random._generator.Generator":
        return f"random state {value.bit_generator.state}"  # type: ignore[attr-defined]
    if name in ("torch._C.Generator",):
        return f"random state {value.initial_seed()}"  # type: ignore[attr-defined]
    if name in ("datetime.datetime", "datetime.date", "uuid.UUID", "pathlib.PosixPath"):
        return repr(value)
    return None
