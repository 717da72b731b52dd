"""A forked worker becomes its script: what Python does between its start and the first line, and after the last.

The environment, `__main__`, `sys.argv`, `sys.path`, the standard streams and the signals are as Python makes them; an
uncaught exception is printed as Python prints it; then threads are joined, functions of `atexit` called, and the open
files of the script are written. Then the process ends immediately. Python would next take all modules apart, which
takes 2 s with those of the fork server, and may hang in gloo.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import io
import logging
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Collection
from functools import partial
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from typing import Any, NoReturn

from launcher.nursery import learned, library_state, spawn, torch_patch
from launcher.nursery.import_recorder import ImportRecorder, Recording
from launcher.nursery.protocol import WorkerStart
from launcher.nursery.start_again import VariableGuard, start_again
from launcher.system import proctitle

CANNOT_OPEN = 2
FLUSH_FAILED = 120
TOO_LARGE = 255
"""Exit codes of Python: the script cannot be opened; stdout or stderr cannot take the rest; one that C cannot hold."""


class ForkTemplate:
    """The state of the fork server after its imports, for the workers that it forks."""

    def __init__(
        self,
        path: list[str],
        environ: dict[str, str],
        added: dict[str, str],
        *,
        learns: bool = False,
        read: Collection[str] = (),
        changed: Collection[str] = (),
    ) -> None:
        """`path` is `sys.path` as Python made it, without an entry for the script.

        `environ` is what the fork server was started with, `added` is what modules set while they were loaded. With
        `learns` a worker reports what its script imports. `read` are variables that modules of the script have read,
        `changed` those that it is known to change.
        """
        self.path = path
        self.environ = environ
        self.added = added
        self.learns = learns
        self.read, self.changed = frozenset(read), frozenset(changed)
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False  # Torch has 174, for its own objects; they take 50 ms.
        self.ours = tuple(name for name in sys.modules if name.partition(".")[0] == "launcher")
        self.own_places = tuple(
            place for place in sys.path_importer_cache if not place.startswith(library_state.installed())
        )
        self.setters = library_state.openblas_setters()
        self._recorder = ImportRecorder(library_state.installed())
        self._guard = VariableGuard(read, changed)

    def run(self, start: WorkerStart) -> NoReturn:
        """Become the worker; ends this process."""
        run(start, self)

    def with_learned(self, made: learned.Learned, changed: Collection[str]) -> ForkTemplate:
        """Return the template with loaded modules of the script, which is known to change the variables `changed`."""
        added = {**self.added, **made.added}
        read = self.read | made.read
        return ForkTemplate(
            self.path, self.environ, added, learns=self.learns, read=read, changed=self.changed.union(changed)
        )

    def watch(self, start: WorkerStart) -> None:
        """Watch the script from now on, until `watched`, if its imports are to be reported."""
        if self.learns:
            self._recorder.start()
            umask = os.umask(0)
            os.umask(umask)
            self._guard.start(partial(start_again, start, umask))

    def watched(self) -> Recording | None:
        """Stop watching; return what the script has imported, None the second time and in a process that it forked."""
        self._guard.stop()
        return self._recorder.stop()


def run(start: WorkerStart, template: ForkTemplate) -> NoReturn:
    """Become the worker; ends this process."""
    try:
        _become_script(start, template)
    except (OSError, ValueError) as error:
        os.write(2, spawn.start_error(start, error))
        os._exit(spawn.CANNOT_START)
    code = 0
    interrupted = False
    program: Callable[[], object] | None = None
    failure: BaseException | None = None
    try:
        program, from_file = _program(list(start.argv), start.env)
        template.watch(start)
        try:
            program()
        finally:
            if from_file:
                _write_out()
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001  # It ends the script, and is reported.
        interrupted = type(error) is KeyboardInterrupt  # Not a subclass of it, as in python.
        failure = error
    if failure is not None:  # Outside of the handler: an error while it is reported was not caused by it.
        code = _report_exception(failure)
    del program, failure
    _leave(code, interrupted=interrupted)


# Before the first line.


def _become_script(start: WorkerStart, template: ForkTemplate) -> None:
    _close_like_exec()
    os.environ.clear()
    os.environ.update(start.env)
    for name, text in template.added.items():
        os.environ.setdefault(name, text)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _open_streams(unbuffered=bool(start.env.get("PYTHONUNBUFFERED")))
    if faulthandler.is_enabled():
        faulthandler.disable()
        faulthandler.enable()
    with contextlib.suppress(
        OSError, RuntimeError, ValueError
    ):  # `launcher.workers.reports.stacks` asks for stack traces by this signal.
        faulthandler.register(signal.SIGRTMAX, 2, all_threads=True, chain=False)
    proctitle.show(start.argv)
    sys.orig_argv[:] = start.argv
    sys.path[:] = template.path
    for place in template.own_places:
        sys.path_importer_cache.pop(place, None)  # The cached listing may be older than a file of today.
    for name in template.ours:
        sys.modules.pop(name, None)  # The script may have a module of that name.
    logging._startTime = time.time()  # type: ignore[attr-defined]
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.ORIGINAL_DIR = start.cwd  # type: ignore[attr-defined]
        process.current_process().authkey = os.urandom(32)
    main_thread: Any = threading.main_thread()
    main_thread._set_native_id()  # Python 3.11 leaves the parent's.
    library_state.restore(start.env, template.environ, template.setters)
    learned.set_right(sys.modules)
    torch_patch.install(template.watched)


def _close_like_exec() -> None:
    """Close what exec would close: all descriptors of the fork server."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if fd > 2 and not os.get_inheritable(fd):
                os.close(fd)


def _open_streams(*, unbuffered: bool) -> None:
    """Open new `sys.stdin`, `sys.stdout` and `sys.stderr`, with the encodings that Python chose for the old ones."""
    old = sys.stderr
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        before = getattr(sys, f"__{name}__")
        raw: Any = open(fd, "rb" if fd == 0 else "wb", 0 if fd and unbuffered else -1, closefd=False)  # noqa: SIM115
        getattr(raw, "raw", raw).name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw,
            encoding=before.encoding,
            errors=before.errors,
            newline="\n",
            line_buffering=not unbuffered and (fd == 2 or raw.isatty()),
            write_through=unbuffered,
        )
        stream.mode = "r" if fd == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for reference in logging._handlerList:  # type: ignore[attr-defined]
        handler = reference()
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(sys.stderr)


# The script.


def _program(argv: list[str], env: dict[str, str]) -> tuple[Callable[[], object], bool]:
    """Return what to call, and whether Python would read it from a file itself.

    It is not a Python function, so that no frame of ours is below the script but those of `run` and its caller.

    `__main__` lasts as long as the process; a script's classes and functions refer to it.
    """
    main = types.ModuleType("__main__")
    main.__loader__ = BuiltinImporter
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # multiprocessing's other name for it; what a spawned process sends back has it.
        sys.modules["__mp_main__"] = main
    safe = bool(env.get("PYTHONSAFEPATH"))
    what, rest = argv[1], argv[2:]
    if what == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        _prepend_sys_path("" if not safe else None)
        return partial(exec, compile(rest[0], "<string>", "exec", 0, dont_inherit=True), main.__dict__), False
    if what == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        _prepend_sys_path(os.getcwd() if not safe else None)
        sys.modules.pop(rest[0], None)
        return partial(runpy._run_module_as_main, rest[0]), False  # type: ignore[attr-defined]
    sys.argv[:] = argv[1:]
    if pkgutil.get_importer(what) is not None:  # A zip file, or a directory, with a __main__.py.
        _prepend_sys_path(os.path.join(os.getcwd(), what))  # Python keeps a "./" here.
        return partial(runpy._run_module_as_main, "__main__", False), False  # type: ignore[attr-defined]
    _prepend_sys_path(os.path.dirname(os.path.realpath(what)) if not safe else None)
    return partial(exec, _code(what, main), main.__dict__), True


def _prepend_sys_path(place: str | None) -> None:
    if place is not None:
        sys.path.insert(0, place)


def _code(script: str, main: types.ModuleType) -> types.CodeType:
    """Return the script's code; its module gets its path."""
    path = os.path.join(os.getcwd(), script.removeprefix("./"))
    main.__file__ = path
    main.__dict__["__cached__"] = None
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        raise SystemExit(CANNOT_OPEN) from None
    if path.endswith(".pyc"):
        bytecode = SourcelessFileLoader("__main__", path)
        main.__loader__ = bytecode
        code = bytecode.get_code("__main__")
    else:
        main.__loader__ = SourceFileLoader("__main__", path)
        code = compile(source, path, "exec", 0, dont_inherit=True)
    assert isinstance(code, types.CodeType)
    return code


# After the last line.


def _exit_code(error: SystemExit) -> int:
    """Return the exit code that Python gives for it; a text is written to stderr."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else TOO_LARGE
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{code}\n")
    return 1


def _report_exception(error: BaseException) -> int:
    """Print an uncaught exception as Python does, without our own frames; return the exit code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if not hasattr(sys, "excepthook"):
        sys.stderr.write("sys.excepthook is missing\n")
        sys.__excepthook__(type(error), error, trace)
        return 1
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as left:
        return _exit_code(left)
    except BaseException as second:  # noqa: BLE001  # The script's own hook failed; Python prints both.
        sys.stderr.write("Error in sys.excepthook:\n")
        second = second.with_traceback(second.__traceback__.tb_next if second.__traceback__ else None)
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)
    return 1


def _leave(code: int, *, interrupted: bool) -> NoReturn:
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:  # noqa: BLE001  # Ctrl-C while threads are joined; Python prints it and continues.
        _report_exception(error)
    atexit._run_exitfuncs()
    code = code if _flush(tell=True) else FLUSH_FAILED
    _take_handlers_away()
    _write_files()
    _flush(tell=False)
    ctypes.PyDLL(None).fflush(None)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _take_handlers_away() -> None:
    """Remove the script's handlers, as Python does here: from now on an exception of theirs would be in our frames."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _write_files() -> None:
    """Write the buffers of the script's open files, before the collector closes them in any order."""
    for one in gc.get_objects():  # Not those of the fork server: they are frozen.
        if issubclass(type(one), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # It is closed, or its target is gone.
                one.flush()


def _write_out() -> None:
    """Do what Python does after the last line of a script that it has read from a file: errors are hidden here."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001  # It is reported at the end, if it persists.
            continue


def _flush(*, tell: bool) -> bool:
    """Write out the buffers of the streams. False if one cannot take them; for stdout, the error can be printed."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        if stream is None or _closed(stream):
            continue
        try:
            stream.flush()
        except BaseException as error:  # noqa: BLE001  # The script's own stream may raise anything.
            written = False
            if tell and stream is sys.stdout:
                _ignored(error, stream)
    return written


def _closed(stream: Any) -> bool:
    try:
        return bool(stream.closed)
    except BaseException:  # noqa: BLE001  # As in Python: a stream that raises here counts as open.
        return False


def _ignored(error: BaseException, where: object) -> None:
    """Print an exception that nothing can catch."""
    error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)  # Without our frame.
    exc_info = (type(error), error, error.__traceback__)
    try:
        if sys.unraisablehook is sys.__unraisablehook__:
            sys.stderr.write(f"Exception ignored in: {where!r}\n")
            sys.__excepthook__(*exc_info)
        else:
            names = ("exc_type", "exc_value", "exc_traceback", "err_msg", "object")
            sys.unraisablehook(types.SimpleNamespace(**dict(zip(names, (*exc_info, None, where), strict=True))))
    except BaseException:  # noqa: BLE001  # There is no stream left to print it on.
        return
