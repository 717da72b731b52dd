"""The command `elastic-launch`: reads the command line, checks it, and hands over to whoever runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config import argv as command_line
from launcher.config import env_reference
from launcher.config.config import Config
from launcher.config.machine_checks import check
from launcher.config.parse import build
from launcher.config.ps_layout import static_hosts
from launcher.net.endpoints import as_ip, parse_endpoint
from launcher.system import frozen_imports
from launcher.system.descriptors import discard_unflushed, open_standard, write_stderr_line
from launcher.system.stdout import print_result, run_reporting_errors
from launcher.workers import environment, ps_environment

if TYPE_CHECKING:
    from launcher.logs.stdio import StdioRedirect


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic-launch` with these arguments (the process's own by default); its exit code.

    A user's mistake is one line on stderr, never a stack trace.
    """
    open_standard()
    try:
        return run_reporting_errors(partial(_start, sys.argv[1:] if argv is None else argv), write_stderr_line)
    finally:
        discard_unflushed()


def _start(argv: Sequence[str]) -> int:
    """Read and check what is asked for, and do it. What runs is imported only here: a mistake is told at once."""
    line = command_line.split_argv(argv)
    if line.asks:
        print_result(_answer(line.asks))
        return 0
    config = check(build(line, os.environ), os.environ)
    with frozen_imports.frozen_imports():
        from launcher.logs.file_names import LAUNCHER_LOG
        from launcher.logs.json_format import JsonFormatter
        from launcher.logs.log_dir import log_folder
        from launcher.logs.stdio import StdioRedirect
    lines = JsonFormatter(config.job_id) if config.log_format == "json" else None
    job = "" if config.local_nodes else _job(config)
    named = Path(config.log_dir)
    hold = partial(log_folder, named, overwrite=config.log_overwrite, job=job, below=config.job_id)
    with StdioRedirect(hold, named, LAUNCHER_LOG if job else "", lines) as outputs:
        return run_reporting_errors(partial(_run, config, outputs), outputs.write_line)


def _run(config: Config, outputs: StdioRedirect) -> int:
    """Hand over."""
    with frozen_imports.frozen_imports():
        from launcher.config import paddlecloud
        from launcher.logs.writer_client import LogWriterClient

    if config.paddlecloud and not config.quiet:
        outputs.write_line(paddlecloud.used_notice(config.ips, config.host))
    with LogWriterClient(outputs.process) as disk:
        for line in disk.notes:
            outputs.write_line(line)
        config = replace(config, log_dir=str(disk.path))
        for line in config.warnings:
            outputs.write_line(f"warning: {line}")
        if config.local_nodes:
            with frozen_imports.frozen_imports():
                from launcher.local import node_supervisor
            return node_supervisor.run(config, outputs)
        with frozen_imports.frozen_imports():
            from launcher.agent import run
        return run.run(config, disk, outputs)


def _job(config: Config) -> str:
    """Tell jobs apart that write logs on the same disk; those in an etcd of this machine alone may have one name.

    An etcd that is served to other hosts has a loopback address too, on the host that serves it.
    """
    host, port = parse_endpoint(config.servers[0])
    address = as_ip(host)
    alone = address is not None and address.is_loopback and not config.login.secret and not static_hosts(config)
    return f"{config.job_id}@{port}" if alone else config.job_id


def _answer(asked: str) -> str:
    if asked == "version":
        from launcher.agent.versions import package_version  # No other answer needs it.

        return f"elastic-launch {package_version('elastic-launch') or '(not installed)'}\n"
    if asked == "help":
        return command_line.help_text()
    return env_reference.help_text(environment.VARIABLES, ps_environment.DOCUMENTED)


if __name__ == "__main__":
    sys.exit(main())
