"""`elastic.launch`: a script that restarts itself under elastic-launch.

The user runs `python train.py` on every node. Outside a worker `launch` replaces this process by the launcher, which
runs the same script as workers; in a worker `launch` does nothing. So the code above the call also runs in the process
that the user started, and the code below it only in workers.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from elastic.errors import ConfigError
from elastic.script import flags as script_flags
from elastic.script.error_report import reporting_config_errors

WORKER_MARKS: Final = ("ELASTIC_FENCE", "TORCHELASTIC_RUN_ID", "RANK")
"""elastic-launch, torchrun, or a user who starts several workers by hand sets one of these variables."""

PYTHON_ENDINGS: Final = (".py", ".pyc", ".pyz")
"""Scripts that the launcher runs with Python. A test compares this with the list of the launcher."""


def launch(
    nodes: Sequence[Mapping[str, str]] | None = None,
    gpu_device_num: int | None = None,
    ctrl_port: int | None = None,
    *,
    elastic_server: str | Sequence[str] | None = None,
    job_id: str | None = None,
    np: int | str | None = None,
    **more: Any,
) -> None:
    """Run this script as a job. Start the same script, with the same call, on every node.

    Outside a worker it does not return: the process becomes `python -m launcher`, which restarts the script as workers.
    In a worker it does nothing.

    Args:
        nodes: All nodes, `[{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}]`, the same list on each node. The first
            node prints the output. By default the job runs on this machine, or, with `elastic_server`, `job_id` and
            `np`, on the nodes that join the job in etcd.
        gpu_device_num: The number of workers on every node, each with its own GPU.
        ctrl_port: The port for the rendezvous of the workers.
        elastic_server: One or more etcd servers as host:port.
        job_id: The job ID.
        np: The number of nodes, or a range such as "1:4".
        **more: Further flags of elastic-launch by name: `max_restarts=5`, `log_dir="log"`, `rerun=True`.

    Raises:
        elastic.errors.ConfigError: An argument is wrong, or there is no script file to start. If nothing catches it,
            Python prints one line to stderr and exits with code 2.
    """
    if inside_worker():
        return
    with reporting_config_errors():
        further = {"elastic_server": elastic_server, "job_id": job_id, "np": np, **more}
        flags = script_flags.flags(nodes=nodes, gpu_device_num=gpu_device_num, ctrl_port=ctrl_port, more=further)
        become_launcher(flags)


def config(*arguments: Any, **flags: Any) -> None:
    """Deprecated: use `elastic.launch`. This name is removed in 0.2."""
    if not inside_worker():  # The workers would repeat the warning.
        warnings.warn(
            "elastic.config is now elastic.launch, with the same arguments; the old name is removed in 0.2",
            DeprecationWarning,
            stacklevel=2,
        )
    launch(*arguments, **flags)


def inside_worker() -> bool:
    """Return whether this process is a worker, or a child of Python's multiprocessing.

    Such a child may import the main script again, and with it the call; it must not become a launcher.
    """
    importing = getattr(multiprocessing.current_process(), "_inheriting", False)  # parent_process() is not set yet.
    child = importing or multiprocessing.parent_process() is not None
    return child or any(mark in os.environ for mark in WORKER_MARKS)


def become_launcher(flags: Sequence[str]) -> NoReturn:
    """Replace this process by elastic-launch with these flags and the running script.

    The interpreter, the working directory, the environment and `sys.argv` are the same; options of the interpreter
    (`python -O`) do not reach the workers. Functions that are registered with atexit do not run. Raises `ConfigError`.
    """
    if not sys.executable:
        raise ConfigError("this Python does not know its own path, so it cannot be restarted")
    # -P: do not import a directory "launcher" in the working directory.
    command = (sys.executable, "-P", "-m", "launcher", *flags, *program(sys.modules["__main__"], sys.argv))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execv(command[0], command)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be restarted: {error.strerror}") from error


def program(main: ModuleType, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments of elastic-launch that run `main` again with its arguments.

    Raises `ConfigError` if there is no file to run: `python -c`, an interactive session, a notebook.
    """
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return ("-m", str(spec.name).removesuffix(".__main__"), *argv[1:])
    file = getattr(main, "__file__", None)
    scripts = [name for name in (argv[0], file) if name and Path(name).exists()]
    if file is None or not scripts:  # A notebook has no __file__, though its argv[0] is a script.
        raise ConfigError(
            "a job restarts the script on every node, but there is no script file (python -c, an interactive session "
            "or a notebook); save the code as a file and run python train.py"
        )
    script = scripts[0]
    if not script.endswith(PYTHON_ENDINGS):  # The launcher would run it as a program, without Python.
        return ("--", sys.executable, script, *argv[1:])
    return ("--", script, *argv[1:])
