"""`elastic-ctl completion`: what a shell needs to complete the words of `elastic-ctl` and `elastic-launch`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from launcher.job.job import Command
from launcher.system.stdout import answer

HOW: Final = {
    "bash": '# In ~/.bashrc:  eval "$(elastic-ctl completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(elastic-ctl completion zsh)"',
    "fish": "# In ~/.config/fish/config.fish:  elastic-ctl completion fish | source",
}
"""How each shell comes to read its script."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(HOW), help="the shell that reads it")


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    answer(script(asked.shell))
    return 0


def script(shell: str) -> str:
    """The script for one of the shells in `HOW`: complete flags of both commands, subcommands, and files."""
    import shtab

    from launcher.config import argv
    from launcher.ctl import cli  # Only now: it is where this stands in a table.

    launch = argv.help_parser()
    for name in ("script", "arguments"):
        launch.add_argument(name, nargs="*" if name == "arguments" else "?").complete = shtab.FILE  # type: ignore[attr-defined]
    return "\n".join([HOW[shell], *(shtab.complete(one, shell) for one in (launch, cli.parser()))])


COMMAND: Final = Command(
    "completion",
    "write a script with which bash, zsh or fish completes elastic-launch and elastic-ctl",
    _arguments,
    alone=_run,
    flags=(),
)
