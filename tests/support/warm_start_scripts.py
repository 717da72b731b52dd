"""Scripts that look at what python gives them: run warm and cold, they must end alike and say the same."""

from __future__ import annotations

SEES = """
import ctypes, gc, json, logging, multiprocessing, os, signal, sys, threading
import numpy, torch
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
names = (b"RANK", b"ONLY_AGENT", b"OPENBLAS_NUM_THREADS", b"PATH")
mask = os.umask(0); os.umask(mask)
streams = (sys.stdin, sys.stdout, sys.stderr)
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "executable": sys.executable,
    "file": globals().get("__file__"),
    "name": __name__, "package": __package__, "cached": globals().get("__cached__"),
    "loader": str(__loader__).partition(" object")[0],
    "spec": getattr(__spec__, "name", None), "names": list(globals()),
    "main is here": main.__dict__ is globals(), "builtins": str(__builtins__), "environ": dict(os.environ),
    "C environ": [str(libc.getenv(name)) for name in names],
    "signals": {str(one): str(signal.getsignal(one)) for one in signal.valid_signals()},
    "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "umask": mask, "cwd": os.getcwd(),
    "streams": [(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, type(s.buffer).__name__,
                 s.fileno(), s.isatty(), s.seekable()) for s in streams],
    "original": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "descriptors": sorted(os.listdir("/proc/self/fd")), "stdin": os.readlink("/proc/self/fd/0"),
    "threads": len(os.listdir("/proc/self/task")),
    "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "main thread": [threading.main_thread().native_id == os.getpid(), threading.current_thread().name],
    "session": os.getsid(0) == os.getpgid(0) == os.getpid(), "gc": [gc.isenabled(), gc.get_threshold()],
    "process": [multiprocessing.current_process().name, multiprocessing.process.ORIGINAL_DIR],
    "command": open("/proc/self/cmdline").read(), "comm": open("/proc/self/comm").read(),
    "ours": [name for name in sys.modules if name.startswith("launcher")], "trace": str(sys.gettrace()),
    "hook": str(sys.excepthook), "recursion": sys.getrecursionlimit(), "cuda": torch.cuda.is_initialized(),
    "root handlers": str(logging.getLogger().handlers),
}, default=str))
"""
"""Everything that a script can ask for without knowing what to look for."""

FAILS = """
import atexit, threading, time
def fail():
    try:
        raise ValueError("inner")
    except ValueError as error:
        raise RuntimeError("outer") from error
atexit.register(print, "atexit")
gate = threading.Event()
threading.Thread(target=lambda: (gate.wait(), print("thread"))).start()
threading.Timer(0.2, gate.set).start()
fail()
"""

HOOKS = """
import sys
def hook(kind, error, trace):
    print(kind.__name__, error, trace.tb_frame.f_code.co_name, trace.tb_next, error.__traceback__ is trace)
    raise LookupError("in the hook")
sys.excepthook = hook
raise OSError("first")
"""

ENDS = """
import atexit, os, weakref
left = open(os.environ["FOLDER"] + "/left." + os.environ["WAY"], "w")
left.write("kept")
class Last: pass
last = Last()
print("no newline", end="")
weakref.finalize(last, print, "finalized")
atexit.register(os.write, 1, b"[written around the buffer]")
"""

DAEMON = """
import threading
forever = threading.Event()
threading.Thread(target=forever.wait, daemon=True).start()
print("done")
"""

POOLS = """
import asyncio, concurrent.futures, multiprocessing, os, pickle, subprocess, sys, threading
class Point:
    def __init__(self, x): self.x = x
def double(point): return Point(2 * point.x)
if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Point(1))).x, Point.__module__)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(double, [Point(3)])[0].x)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(double, Point(4)).result().x)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        print(sum(pool.map(lambda x: x, range(5))))
    async def main():
        process = await asyncio.create_subprocess_exec("echo", "asyncio")
        return await process.wait()
    print(asyncio.run(main()), subprocess.run([sys.executable, "-c", "print('subprocess')"]).returncode)
"""

LOADERS = """
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
def rank(index): print("rank", index, torch.ones(2).sum().item(), flush=True)
if __name__ == "__main__":
    data = TensorDataset(torch.arange(8.0))
    for method in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=method, persistent_workers=True)
        print(method, [batch[0].sum().item() for batch in loader])
    mp.spawn(rank, nprocs=1)
    model = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.AdamW(model.parameters()).step()
    print("compiled")
"""

SCIENCE = """
import numpy
from sklearn.linear_model import LinearRegression
x = numpy.arange(200.0).reshape(100, 2)
print(LinearRegression().fit(x, x.sum(1)).coef_.round(3), (x.T @ x).sum())
try:
    import pandas
except ImportError:
    pass
else:
    print(pandas.DataFrame({"a": [1, 2]}).sum().to_dict())
"""

CALLED = """
import atexit, sys
def bad(): raise ValueError("in atexit")
atexit.register(print, "first registered")
atexit.register(bad)
atexit.register(lambda: sys.exit(9))
print("end")
"""

LATE = """
import io, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
class Last(io.TextIOWrapper):
    def flush(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("not killed")
last = Last(io.BytesIO())
"""
"""A signal that comes after `atexit`: python has taken the script's handlers away by then."""

OWN_STREAM = """
import sys
class Stream:
    def write(self, text): sys.__stdout__.write(text)
    def flush(self): raise RuntimeError("in flush")
sys.stdout = Stream()
print("written")
"""

PACKAGED = """
import sys
print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], flush=True)
print("after the stack")
raise ValueError("told")
"""
"""The `__main__` of a folder, a zip file and a package."""

SCRIPTS = {
    "sees": SEES,
    "fails": FAILS,
    "hooks": HOOKS,
    "ends": ENDS,
    "daemon": DAEMON,
    "pools": POOLS,
    "loaders": LOADERS,
    "science": SCIENCE,
    "syntax": "x = (\n",
    "cookie": "# -*- coding: latin-1 -*-\nprint('\xe4' == chr(228))\n",
    "text": "import sys\nprint('before')\nsys.exit('the text')\n",
    "beside": "import launcher\nprint(launcher.mine)\n",
    "none": "raise SystemExit\n",
    "big": "raise SystemExit(300)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "group": "raise ExceptionGroup('two', [ValueError(1), OSError(2)])\n",
    "warns": "import warnings, logging\nwarnings.warn('careful')\nlogging.warning('logged')\n",
    "thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()\n",
    "closed": "import sys\nsys.stdout.close()\n",
    "killed": "import os\nos.kill(os.getpid(), 15)\n",
    "called": CALLED,
    "late": LATE,
    "own_stream": OWN_STREAM,
    "huge": "raise SystemExit(2 ** 70)\n",
    "minus": "raise SystemExit(-1)\n",
    "derived": "class Mine(KeyboardInterrupt): pass\nraise Mine\n",
    "hookless": "import sys\ndel sys.excepthook\n1 / 0\n",
    "detached": "import sys\nsys.stdout.detach().write(b'raw')\n",
    "mute": "import os, sys\nos.close(2)\nsys.stderr.write('unheard')\n",
    "full": "import os\nprint('x', end='')\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('y')\n",
    "unraised": "import sys\nsys.unraisablehook = lambda a: print(a.exc_value, file=sys.stderr)\nsys.stdout.detach()\n",
    "crash": "import faulthandler, os\nfaulthandler.enable()\nos.abort()\n",
}
