"""A script that starts itself again under elastic-launch: `elastic.launch`.

The user types `python train.py` on every node. Outside a worker `launch` replaces this process by the launcher, which
runs the same script as a worker; there `launch` does nothing. So what stands above the call in the script runs once
more than there are workers, and what stands below it runs in workers only.
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
"""A process with one of these was started by elastic-launch, by torchrun, or by hand as one of several workers."""

PYTHON_ENDINGS: Final = (".py", ".pyc", ".pyz")
"""Scripts that the launcher gives to python by itself. A test holds this and the launcher's own list together."""


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
    """Run this script as a job: the same script, with the same call, is started on every node.

    In a process that is no worker it does not return: the process becomes `python -m launcher`, which starts the
    script again as workers. In a worker it does nothing.

    Args:
        nodes: All nodes, `[{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}]`, the same list on each node; the first
            one shows the output. Without it the job is this machine, or, with `elastic_server`, `job_id` and `np`, the
            nodes that meet there.
        gpu_device_num: The number of workers, each with a GPU of its own, on every node.
        ctrl_port: The port where the workers meet.
        elastic_server: One or more etcd servers, host:port.
        job_id: The name of the job in etcd.
        np: The number of nodes, or a range such as "1:4".
        more: Further flags of elastic-launch by name: `max_restarts=5`, `log_dir="log"`, `rerun=True`.

    Raises:
        elastic.errors.ConfigError: An argument is wrong, or there is no script file to start. If nothing catches it,
            it is one line on stderr, and the exit code is 2.
    """
    if inside_worker():
        return
    with reporting_config_errors():
        further = {"elastic_server": elastic_server, "job_id": job_id, "np": np, **more}
        flags = script_flags.flags(nodes=nodes, gpu_device_num=gpu_device_num, ctrl_port=ctrl_port, more=further)
        become_launcher(flags)


def config(*arguments: Any, **flags: Any) -> None:
    """Do what `launch` does. The old name of `elastic.launch`, which the next release no longer has."""
    if not inside_worker():  # A warning for each worker would say the same again.
        warnings.warn(
            "elastic.config is elastic.launch now, with the same arguments; the next release has only elastic.launch",
            DeprecationWarning,
            stacklevel=2,
        )
    launch(*arguments, **flags)


def inside_worker() -> bool:
    """Tell whether this process is a worker already, or a child of Python's multiprocessing.

    Such a child may import the main script once more, and with it the call; it must not become a launcher.
    """
    importing = getattr(multiprocessing.current_process(), "_inheriting", False)  # parent_process() is not set yet.
    child = importing or multiprocessing.parent_process() is not None
    return child or any(mark in os.environ for mark in WORKER_MARKS)


def become_launcher(flags: Sequence[str]) -> NoReturn:
    """Replace this process by elastic-launch with these flags and the script that runs now.

    The interpreter, the working directory, the environment and `sys.argv` stay; options of the interpreter itself
    (`python -O`) do not reach the workers. Nothing that was registered with atexit runs.
    """
    if not sys.executable:
        raise ConfigError("this python does not know its own path, so that it cannot be started again")
    # -P: a folder named "launcher" where the user stands is not ours.
    command = (sys.executable, "-P", "-m", "launcher", *flags, *program(sys.modules["__main__"], sys.argv))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execv(command[0], command)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started again: {error.strerror}") from error


def program(main: ModuleType, argv: Sequence[str]) -> tuple[str, ...]:
    """The words for elastic-launch that run `main` again with the arguments it has.

    Raises `ConfigError` when there is no file to run: `python -c`, an interactive session, a notebook.
    """
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return ("-m", str(spec.name).removesuffix(".__main__"), *argv[1:])
    file = getattr(main, "__file__", None)
    scripts = [name for name in (argv[0], file) if name and Path(name).exists()]
    if file is None or not scripts:  # A notebook has no __file__, though its argv[0] is a script.
        raise ConfigError(
            "a job starts the script again on every node, and here is no script (python -c, an interactive session or "
            "a notebook); save it as a file and run python train.py"
        )
    script = scripts[0]
    if not script.endswith(PYTHON_ENDINGS):  # The launcher would run it as a program of its own.
        return ("--", sys.executable, script, *argv[1:])
    return ("--", script, *argv[1:])
