"""The command `elastic-launch`: reads the command line, checks it, and hands over to whoever runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from elastic.errors import ElasticError
from launcher import commandline, variables
from launcher.config import Config, build, check
from launcher.descriptors import open_standard

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended: 128 + SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic-launch` with these arguments (the process's own by default); its exit code.

    A user's mistake is one line on stderr, never a stack trace.
    """
    open_standard()
    try:
        line = commandline.cut(sys.argv[1:] if argv is None else argv)
        if line.asks:
            sys.stdout.write(_answer(line.asks))
            return 0
        return _run(check(build(line, os.environ), os.environ))
    except ElasticError as error:
        sys.stderr.write(f"elastic-launch: error: {' '.join(str(error).split())}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(config: Config) -> int:
    """Hand over. What runs is imported only here: a wrong command line is told without waiting for it."""
    from launcher import paddlecloud
    from launcher.folder import LogFolder

    if config.paddlecloud and not config.quiet:
        sys.stderr.write(f"elastic-launch: {paddlecloud.line(config.ips, config.host)}\n")
    with LogFolder(Path(config.log_dir), overwrite=config.log_overwrite) as folder:
        if folder.note:
            sys.stderr.write(f"elastic-launch: --log_overwrite: {folder.note}\n")
        for line in config.warnings:
            sys.stderr.write(f"elastic-launch: warning: {line}\n")
        if config.local_nodes:
            from launcher import local

            return local.run(config)
        from launcher import agent

        return agent.run(config)


def _answer(asked: str) -> str:
    if asked == "help":
        return commandline.help_text()
    return variables.help_text() if asked == "help_env" else f"elastic-launch {_version()}\n"


def _version() -> str:
    try:
        return version("elastic-launch")
    except PackageNotFoundError:  # Run from a checkout that was not installed.
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
