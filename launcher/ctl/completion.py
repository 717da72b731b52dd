"""`elastic-ctl completion`: what a shell needs to complete the words of `elastic-ctl` and `elastic-launch`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from launcher.job.named_job import Subcommand
from launcher.system.stdout import print_result

HOW: Final = {
    "bash": '# In ~/.bashrc:  eval "$(elastic-ctl completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(elastic-ctl completion zsh)"',
    "fish": "# In ~/.config/fish/config.fish:  elastic-ctl completion fish | source",
}
"""How each shell comes to read its script."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(HOW), help="the shell that reads it")


def script(shell: str, ctl: argparse.ArgumentParser) -> str:
    """The script for one of the shells in `HOW`: complete flags of both commands, subcommands, and files."""
    import shtab

    from launcher.config import argv

    launch = argv.help_parser()
    for name in ("script", "arguments"):
        launch.add_argument(name, nargs="*" if name == "arguments" else "?").complete = shtab.FILE  # type: ignore[attr-defined]
    return "\n".join([HOW[shell], *(shtab.complete(one, shell) for one in (launch, ctl))])


def command(ctl: Callable[[], argparse.ArgumentParser]) -> Subcommand:
    """The subcommand. `ctl` makes the parser of `elastic-ctl`, in whose table it is itself."""

    async def run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
        print_result(script(asked.shell, ctl()))
        return 0

    return Subcommand(
        "completion",
        "write a script with which bash, zsh or fish completes elastic-launch and elastic-ctl",
        _arguments,
        alone=run,
        flags=(),
    )
