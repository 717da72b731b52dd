"""The command `elastic-launch`: reads the command line, checks it, and starts the nodes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from elastic.errors import ConfigError
from launcher import __version__
from launcher.config import argv as command_line
from launcher.config import env_reference, explain, help_page
from launcher.config.argv import SplitCommandLine
from launcher.config.config import Config
from launcher.config.machine_checks import check
from launcher.config.parse import resolve
from launcher.config.ps_layout import static_hosts
from launcher.net.endpoints import as_ip, parse_endpoint
from launcher.system import frozen_imports
from launcher.system.descriptors import discard_unflushed, open_standard, write_stderr, write_stderr_line
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
    """Read and check the command line, and run it. The agent is imported only then, so that a mistake costs no time."""
    if not argv:
        write_stderr(help_page.short_text())
        return ConfigError.exit_code
    line = command_line.split_argv(argv)
    if line.asks or _is_word_help(line):
        print_result(_answer(line.asks or "help"))
        return 0
    parsed, sources = resolve(line, os.environ)
    config = check(parsed, os.environ)
    if line.explain:
        for text in _lines_at_start(config):
            write_stderr_line(text)
        print_result(explain.explained(config, sources, random_job_id=not parsed.job_id))
        return 0
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
    """Start the nodes of this machine, or the agent of this node."""
    with frozen_imports.frozen_imports():
        from launcher.config import paddlecloud
        from launcher.logs.writer_client import LogWriterClient

    if config.paddlecloud and not config.quiet:
        outputs.write_line(paddlecloud.used_notice(config.ips, config.host))
    with LogWriterClient(outputs.process) as disk:
        for line in disk.notes:
            outputs.write_line(line)
        config = replace(config, log_dir=str(disk.path))
        for line in _lines_at_start(config):
            outputs.write_line(line)
        if config.local_nodes:
            with frozen_imports.frozen_imports():
                from launcher.local import node_supervisor
            return node_supervisor.run(config, outputs)
        with frozen_imports.frozen_imports():
            from launcher.agent import run
        return run.run(config, disk, outputs)


def _lines_at_start(config: Config) -> tuple[str, ...]:
    """Return the lines to print once: warnings, and notes unless --quiet is given."""
    notes = () if config.quiet else config.notes
    return (*(f"warning: {line}" for line in config.warnings), *(f"note: {line}" for line in notes))


def _job(config: Config) -> str:
    """Return a name that distinguishes the jobs whose logs are on the same disk.

    Jobs with a private etcd on this machine may have the same ID, so their port is part of the name. An etcd that is
    served to other hosts has a loopback address too, on the host that serves it.
    """
    host, port = parse_endpoint(config.servers[0])
    address = as_ip(host)
    alone = address is not None and address.is_loopback and not config.login.secret and not static_hosts(config)
    return f"{config.job_id}@{port}" if alone else config.job_id


def _is_word_help(line: SplitCommandLine) -> bool:
    """Return whether the script is the word `help`, and no file or program has that name."""
    is_word = (line.script, line.script_args, line.module) == ("help", (), False)
    return is_word and not Path("help").exists() and shutil.which("help") is None


def _answer(asked: str) -> str:
    if asked == "version":
        return f"elastic-launch {__version__}\n"
    if asked == "help":
        return help_page.help_text()
    return env_reference.help_text(environment.VARIABLES, ps_environment.DOCUMENTED)


if __name__ == "__main__":
    sys.exit(main())
