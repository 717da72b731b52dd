"""The command line as text: cut at the script, read by the table of flags, and explained by --help.

argparse only lays out the help. It cannot tell where the script begins when it meets a flag that it does not know.
"""

from __future__ import annotations

import argparse
import difflib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elastic.errors import ConfigError
from launcher.config import readers
from launcher.config.durations import FORMS, METAVAR, duration_text
from launcher.config.flags import BY_NAME, FLAGS
from launcher.config.job_settings import JobSettings
from launcher.config.setting import BASE, HELP_GROUPS, WORKER_MARK, Flag, Scope
from launcher.net.endpoints import PORT_MAX

HELP_WIDTH: Final = 110
"""Columns of the help, unless the terminal has fewer."""
SUGGESTION_CUTOFF = 0.7
"""How alike (0 to 1) a mistyped flag must be to a real one for it to be proposed."""

START_PORTS: Final = ("FLAGS_START_PORT", "PADDLE_PORT")
"""Paddle's variables for the first of a node's ports; the second counts beside TRAINER_PORTS_NUM only."""

HINTS: Final[Mapping[str, str]] = {
    # Paddle's launchers, the older ones first.
    "cluster_node_ips": "use --ips",
    "selected_gpus": "use --gpus",
    "node_ip": "use --host",
    "use_paddlecloud": "leave it out: the variables of PaddleCloud are read where they are set",
    "started_port": "use --port_range LOW:HIGH",
    "start_port": "use --port_range LOW:HIGH",
    "log_level": "use --verbose or --quiet",
    "print_config": "leave it out; --verbose says more",
    "endpoints": "use --servers",
    "devices": "use --gpus",
    "xpus": "leave it out: the cards are NVIDIA's (--gpus), or none",
    "npus": "leave it out: the cards are NVIDIA's (--gpus), or none",
    "mlus": "leave it out: the cards are NVIDIA's (--gpus), or none",
    "selected_xpus": "leave it out: the cards are NVIDIA's (--gpus), or none",
    "selected_npus": "leave it out: the cards are NVIDIA's (--gpus), or none",
    "master": "use --elastic_server HOST:PORT",
    "rank": "leave it out: the nodes agree on their order in etcd, or take it from --ips",
    "ranks": "leave it out: a rank is M_id * N + N_id",
    "trainers": "use --workers",
    "trainer_num": "use --worker_num",
    "coordinators": "leave it out: there is no such role here",
    "coordinator_num": "leave it out: there is no such role here",
    "heter_devices": "use --gpus; heterogeneous workers take the cards of their node",
    "gloo_port": "use --http_port",
    "with_gloo": "leave it out: the script chooses its backend",
    "backend": "leave it out: the script chooses its backend",
    "scale": "use elastic-ctl scale --np MIN:MAX, or --np with --force",
    "max_restart": "use --max_restarts",
    "elastic_level": "leave it out: --np MIN:MAX says how far a job may shrink and grow",
    "elastic_pre_hook": "leave it out: run it before the launcher",
    "sort_ip": "use --ips for an order of your own",
    "enable_gpu_log": "leave it out",
    "legacy": "leave it out",
    # torchrun.
    "nnodes": "use --np (2, or 1:4)",
    "rdzv_endpoint": "use --elastic_server HOST:PORT",
    "rdzv_id": "use --job_id",
    "rdzv_backend": "leave it out: nodes always meet in etcd",
    "rdzv_conf": "leave it out: --lease_ttl, --silence_timeout, --settle and --connect_timeout are flags of their own",
    "standalone": "leave it out: without --elastic_server the job runs on this machine alone",
    "node_rank": "leave it out: the nodes agree on their order in etcd",
    "master_addr": "leave it out: the nodes agree on the master in etcd",
    "master_port": "use --ctrl_port, or leave it out: any free port will do",
    "monitor_interval": "leave it out: an exit is noticed at once",
    "start_method": "leave it out: workers are processes of their own",
    "event_log_handler": "leave it out",
    "role": "leave it out: ROLE_NAME is always default",
    "no_python": "leave it out: a script that does not end in .py is run as it is",
    "run_path": "leave it out: a script that ends in .py is run by this python",
    "module": "use -m",
    "redirects": "leave it out: each worker has a log in --log_dir; --console says what is shown",
    "r": "leave it out: each worker has a log in --log_dir; --console says what is shown",
    "tee": "use --console",
    "t": "use --console",
    "local_ranks_filter": "use --console",
    "logs_specs": "use --log_dir and --console",
    "duplicate_stdout_filters": "leave it out",
    "duplicate_stderr_filters": "leave it out",
    "local_addr": "use --host",
    "numa_binding": "leave it out: bind in the script, or start it under numactl",
    "signals_to_handle": "leave it out: SIGTERM, SIGINT and SIGHUP are heard",
    "virtual_local_rank": "use --one_card_per_worker; LOCAL_RANK stays the place on the node",
    "shutdown_timeout": "use --grace",
}
"""Flags of other launchers, and of older ones, with what to write instead."""


QUESTIONS: Final = {
    "-h": "help",
    "--help": "help",
    "--help-env": "help_env",
    "--help_env": "help_env",
    "--version": "version",
}
"""Flags that are answered with a text, whatever else is there."""


@dataclass(frozen=True, slots=True)
class SplitCommandLine:
    """A command line, cut at the script. `flags` are `(name, text)` in order; a switch has the text ""."""

    flags: tuple[tuple[str, str], ...]
    script: str
    script_args: tuple[str, ...]
    module: bool
    asks: str = ""
    """"help", "help_env" or "version" when one of them was asked for, which then is all that counts."""


def split_argv(argv: Sequence[str]) -> SplitCommandLine:
    """Cut a command line into our flags and the script with all that belongs to it.

    The first word that is no flag, or what follows `--` or `-m`, is the script. Dashes in a flag's name count as
    underscores; names are never abbreviated. Raises `ConfigError` for a flag that does not exist or lacks its value.
    """
    flags: list[tuple[str, str]] = []
    rest = list(argv)
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if not word.startswith("-") or word == "-":
            break
        rest.pop(0)
        if word in QUESTIONS:
            return SplitCommandLine((), "", (), False, asks=QUESTIONS[word])
        if word == "-m":
            if not rest:
                raise ConfigError("-m needs the name of a module")
            return SplitCommandLine(tuple(flags), rest[0], tuple(rest[1:]), True)
        flags.append(_flag(word, rest))
    return SplitCommandLine(tuple(flags), rest[0] if rest else "", tuple(rest[1:]), False)


def _flag(word: str, rest: list[str]) -> tuple[str, str]:
    """Read one flag; takes its value from `rest` unless it came with "=". Only there may it look like a flag."""
    written, equals, text = word.partition("=")
    name = written.lstrip("-").replace("-", "_")
    flag = BY_NAME.get(name)
    if flag is None or not written.startswith("--"):
        raise ConfigError(_unknown(written, name))
    if flag.switch:
        if equals:
            raise ConfigError(f"{written} is a switch and takes no value; write {written} alone")
        return flag.name, ""
    if not equals:
        if not rest or rest[0].startswith("--") or rest[0] == "-m":
            raise ConfigError(f"{written} needs a value ({flag.metavar})")
        text = rest.pop(0)
    return flag.name, text


def _unknown(written: str, name: str) -> str:
    if name in HINTS:
        return f"no such argument: {written}; {HINTS[name]}"
    close = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=SUGGESTION_CUTOFF)
    if close:
        return f"no such argument: {written}; did you mean --{close[0]}?"
    return f"no such argument: {written}; --help lists all, and a script's own arguments come after the script"


def given_values(line: SplitCommandLine, environ: Mapping[str, str]) -> dict[str, Any]:
    """The value of every flag that was given, by field: the command line first, then the environment.

    An empty variable counts as not set.
    """
    return {
        BY_NAME[name].field: readers.read_as(source, BY_NAME[name].read or readers.boolean, text)
        for name, (source, text) in _given(line, environ).items()
    }


def sources(line: SplitCommandLine, environ: Mapping[str, str]) -> dict[str, str]:
    """For every flag that was given, by name: how it was written, `--np` or the variable that stands for it."""
    return {name: source for name, (source, _) in _given(line, environ).items()}


def _given(line: SplitCommandLine, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """For every flag that was given, by name: how it was written, and its text."""
    written = {name: (f"--{name}", "1" if BY_NAME[name].switch else text) for name, text in line.flags}
    found = {flag.name: written.get(flag.name) or _from_environment(flag, environ) for flag in FLAGS}
    return {name: (source, text) for name, (source, text) in found.items() if source}


def named_values(asked: Mapping[str, str | None], environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """The values of some flags alone, by field, for other commands: `asked` (by name) first, then the environment.

    The key prefix has its default. Inside a worker the job is the worker's. Raises `ConfigError`.
    """
    flags = tuple((name, text) for name in names if (text := asked.get(name)) is not None)
    others = {variable for flag in FLAGS if flag.name not in names for variable in flag.variables} | {*START_PORTS}
    ours = {name: text for name, text in environ.items() if name not in others and name != WORKER_MARK}
    return {"key_prefix": JobSettings.key_prefix, **given_values(SplitCommandLine(flags, "", (), False), ours)}


def _from_environment(flag: Flag, environ: Mapping[str, str]) -> tuple[str, str]:
    for variable in flag.variables:
        if variable == flag.own_variable and Scope.WORKER in flag.scope and WORKER_MARK in environ:
            continue
        text = environ.get(variable, "").strip()
        if text:
            return variable, text
    if flag.name == "elastic_server":
        host = environ.get("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "").strip()
        port = environ.get("PADDLE_ELASTIC_ETCD_SERVICE_PORT", "").strip()
        if host and port:
            return (
                "PADDLE_ELASTIC_ETCD_SERVICE_HOST and …_PORT",
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            )
    if flag.name == "port_range" and WORKER_MARK not in environ:
        return _start_port(environ)
    return "", ""


def _start_port(environ: Mapping[str, str]) -> tuple[str, str]:
    """Paddle's variables for the first of a node's ports, as a range."""
    for variable in START_PORTS if environ.get("TRAINER_PORTS_NUM", "").strip() else START_PORTS[:1]:
        text = environ.get(variable, "").strip()
        if text:
            return variable, f"{readers.read_as(variable, readers.port, text)}:{PORT_MAX}"
    return "", ""


def help_text() -> str:
    """The whole help, in groups, each flag with its default and its environment variable."""
    return help_parser().format_help()


def help_parser() -> argparse.ArgumentParser:
    """A parser that has every flag, for its help alone."""
    width = min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 0)).columns)
    parser = argparse.ArgumentParser(
        prog="elastic-launch",
        usage="elastic-launch [flags] script.py [arguments of the script]\n"
        "       elastic-launch [flags] -m module [arguments of the module]\n\n"
        "examples:\n"
        "  elastic-launch --gpus 0,1,2,3 train.py --batch_size=64\n"
        '  elastic-launch --gpus=2,3 --ips="192.168.0.1,192.168.0.2" train.py --batch_size=64\n'
        "  elastic-launch --server_num 2 --worker_num 2 train.py\n"
        "  elastic-launch --elastic_server 127.0.0.1:2379 --job_id job1 --np 2 train.py",
        description="Run a PyTorch training script on nodes that come and go. The same command on every node.",
        epilog="Precedence: flag, ELASTIC_<FLAG>, PADDLE_..., default; --help-env lists the variables. "
        "Dashes in names work, abbreviations do not. "
        f"A {METAVAR} is {FORMS}. "
        "Exit codes: 0 completed, 1 training failed, 2 wrong command line or set-up, 3 refused by the job, "
        "4 nothing wrong here, try again, 128+n this agent was ended by signal n.",
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=width),
    )
    groups = {name: parser.add_argument_group(name) for name in HELP_GROUPS}
    groups[BASE].add_argument("-h", "--help", action="store_true", help="show this help")
    groups[BASE].add_argument("--help-env", action="store_true", help="show every variable, read or set")
    groups[BASE].add_argument("--version", action="store_true", help="show the version")
    groups[BASE].add_argument("-m", metavar="MODULE", help="run a module as a script, like python -m")
    for flag in FLAGS:
        text = f"{flag.help} (default: {_shown(flag)}; {', '.join(_shown_variables(flag))})".replace("%", "%%")
        groups[flag.group].add_argument(f"--{flag.name}", help=text, **argparse_kind(flag))
    return parser


def argparse_kind(flag: Flag) -> dict[str, Any]:
    """How argparse reads a flag: with a value, or without one as the text ""."""
    return {"action": "store_const", "const": ""} if flag.switch else {"metavar": flag.metavar}


def _shown(flag: Flag) -> str:
    if flag.shown:
        return flag.shown
    if flag.switch:
        return "off"
    return duration_text(flag.default) if flag.metavar == METAVAR else str(flag.default)


def _shown_variables(flag: Flag) -> tuple[str, ...]:
    return (flag.variables[0], *flag.environs)
