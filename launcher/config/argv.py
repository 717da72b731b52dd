"""The command line as text: split at the script, and read with the table of flags.

argparse cannot find the script behind a flag that it does not know, so it is not used here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elastic.errors import ConfigError
from launcher.config import readers
from launcher.config.flags import BY_NAME, BY_OLD_NAME, FLAGS
from launcher.config.job_settings import JobSettings
from launcher.config.setting import WORKER_MARK, Flag, Scope, option
from launcher.config.torchrun_names import ALIASES, NO_EFFECT, STANDALONE_NOTE, no_effect_note
from launcher.net.endpoints import PORT_MAX

SUGGESTION_CUTOFF = 0.7
"""The similarity (0 to 1) from which a flag is suggested for a mistyped one."""

OLD_NAMES_UNTIL: Final = "0.3"
"""The release that no longer accepts old names of flags and variables."""

START_PORTS: Final = ("FLAGS_START_PORT", "PADDLE_PORT")
"""Paddle's variables for the first of a node's ports; the second counts only with TRAINER_PORTS_NUM."""

HINTS: Final[Mapping[str, str]] = {
    # Paddle's launchers, older ones first.
    "cluster_node_ips": "use --ips",
    "selected_gpus": "use --gpus",
    "node_ip": "use --host",
    "use_paddlecloud": "leave it out: the variables of PaddleCloud are read where they are set",
    "started_port": "use --port-range LOW:HIGH",
    "start_port": "use --port-range LOW:HIGH",
    "log_level": "use --verbose or --quiet",
    "print_config": "use --explain",
    "endpoints": "use --servers",
    "devices": "use --gpus",
    "xpus": "leave it out: only NVIDIA GPUs are supported (--gpus)",
    "npus": "leave it out: only NVIDIA GPUs are supported (--gpus)",
    "mlus": "leave it out: only NVIDIA GPUs are supported (--gpus)",
    "selected_xpus": "leave it out: only NVIDIA GPUs are supported (--gpus)",
    "selected_npus": "leave it out: only NVIDIA GPUs are supported (--gpus)",
    "master": "use --elastic-server HOST:PORT",
    "rank": "leave it out: nodes agree on their ranks in etcd, or take them from the order of --ips",
    "ranks": "leave it out: a rank is node rank * workers per node + local rank",
    "trainers": "use --workers",
    "trainer_num": "use --worker-num",
    "coordinators": "leave it out: elastic-launch has no such role",
    "coordinator_num": "leave it out: elastic-launch has no such role",
    "heter_devices": "use --gpus; heterogeneous workers use the GPUs of their node",
    "gloo_port": "use --http-port",
    "with_gloo": "leave it out: the script chooses its backend",
    "backend": "leave it out: the script chooses its backend",
    "scale": "use elastic-ctl scale --np MIN:MAX, or --np with --force",
    "max_restart": "use --max-restarts",
    "elastic_level": "leave it out: --np MIN:MAX is the range of nodes",
    "elastic_pre_hook": "leave it out: run it before the launcher",
    "sort_ip": "use --ips to choose the order",
    "enable_gpu_log": "leave it out",
    "legacy": "leave it out",
    # torchrun. The names that work here are in `torchrun_names`.
    "monitor_interval": "leave it out: an exit is noticed at once",
    "start_method": "leave it out: every worker is a separate process",
    "event_log_handler": "leave it out",
    "role": "leave it out: ROLE_NAME is always default",
    "run_path": "leave it out: a script that ends in .py is run by this python",
    "redirects": "leave it out: each worker has a log in --log-dir; --console selects what is shown",
    "r": "leave it out: each worker has a log in --log-dir; --console selects what is shown",
    "tee": "use --console",
    "t": "use --console",
    "local_ranks_filter": "use --console",
    "log_line_prefix_template": "leave it out: with --console all, lines begin with node and rank",
    "print_completion": "use elastic-ctl completion bash, zsh or fish",
    "logs_specs": "use --log-dir and --console",
    "duplicate_stdout_filters": "leave it out",
    "duplicate_stderr_filters": "leave it out",
    "numa_binding": "leave it out: bind in the script, or start it under numactl",
    "signals_to_handle": "leave it out: the agent handles SIGTERM, SIGINT and SIGHUP",
    "virtual_local_rank": "use --isolate-gpus; LOCAL_RANK stays the rank on the node",
    "shutdown_timeout": "use --stop-timeout",
}
"""Flags of other launchers that are not accepted, with what to write instead."""


QUESTIONS: Final = {
    "-h": "help",
    "--help": "help",
    "--help-env": "help_env",
    "--help_env": "help_env",
    "--version": "version",
}
"""Flags that print a text and end the program, whatever the other arguments are."""


EXPLAIN: Final = "--explain"
"""Print the resolved settings instead of starting anything."""
MODULE: Final = ("-m", "--module")
"""Run the script as a module."""
SHORT: Final = {f"-{flag.short}": flag.option for flag in FLAGS if flag.short}
"""The short forms of flags."""


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """One flag of the command line: its name, its text ("" for a switch), and how it was written."""

    name: str
    text: str
    written: str
    typed: str = ""
    """The text that the user typed, if an alias converts it."""


@dataclass(frozen=True, slots=True)
class SplitCommandLine:
    """A command line, split at the script. `notes` are lines about flags that have no effect."""

    given: tuple[GivenFlag, ...]
    script: str
    script_args: tuple[str, ...]
    module: bool
    asks: str = ""
    """"help", "help_env" or "version" if one of these flags is set; all other fields are then empty."""
    explain: bool = False
    notes: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[tuple[str, str], ...]:
        """The name and the text of every flag, in order: by its current name, whatever alias was written."""
        return tuple((flag.name, flag.text) for flag in self.given)


def split_argv(argv: Sequence[str]) -> SplitCommandLine:
    """Split a command line into the flags of elastic-launch, the script and the arguments of the script.

    The first word that is not a flag, or the word after `--`, is the script. Dashes in a flag's name count as
    underscores; names are never abbreviated. Raises `ConfigError` for a flag that does not exist or lacks its value,
    and for an alias that contradicts its flag.
    """
    given: list[GivenFlag] = []
    notes: dict[str, None] = {}
    rest, module, explain = list(argv), "", False
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if not word.startswith("-") or word == "-":
            break
        rest.pop(0)
        word = SHORT.get(word, word)
        if word in QUESTIONS:
            return SplitCommandLine((), "", (), False, asks=QUESTIONS[word])
        if word in MODULE:
            module = word
        elif word == EXPLAIN:
            explain = True
        elif (name := _name(word)) in NO_EFFECT:
            _text(word, "VALUE", rest)
            notes[no_effect_note(name)] = None
        else:
            given.append(_flag(word, rest))
    if module and not rest:
        raise ConfigError(f"{module} needs the name of a module")
    if any(flag.name == "standalone" for flag in given):
        if any(flag.written == "--rdzv-endpoint" for flag in given):
            notes[STANDALONE_NOTE] = None
        given = [flag for flag in given if flag.written != "--rdzv-endpoint"]
    _check_aliases(given)
    script = rest[0] if rest else ""
    return SplitCommandLine(tuple(given), script, tuple(rest[1:]), bool(module), explain=explain, notes=tuple(notes))


def _name(word: str) -> str:
    """Return the name in a word that may be a flag with its value; "" for a short flag."""
    written = word.partition("=")[0]
    return written[2:].replace("-", "_") if written.startswith("--") else ""


def _flag(word: str, rest: list[str]) -> GivenFlag:
    """Read one flag; takes its value from `rest` unless it came with "="."""
    written, name = word.partition("=")[0], _name(word)
    alias = ALIASES.get(name)
    flag = BY_NAME.get(alias.flag if alias else name) or BY_OLD_NAME.get(name)
    if flag is None and written in (*MODULE, EXPLAIN):
        raise ConfigError(_takes_no_value(written))
    if flag is None:
        raise ConfigError(_unknown(written, written.lstrip("-").replace("-", "_")))
    if flag.switch:
        if written != word:
            raise ConfigError(_takes_no_value(written))
        return GivenFlag(flag.name, "", option(name))
    text = _text(word, (alias and alias.metavar) or flag.metavar, rest)
    if alias is None:
        return GivenFlag(flag.name, text, option(name))
    return GivenFlag(flag.name, readers.read_as(option(name), alias.convert, text), option(name), text)


def _takes_no_value(written: str) -> str:
    return f"{written} is a switch and takes no value; write {written} alone"


def _text(word: str, metavar: str, rest: list[str]) -> str:
    """Return the value of a flag: the text after "=", or the next word, which is removed from `rest`.

    A value that looks like a flag is only accepted after "=".
    """
    written, equals, text = word.partition("=")
    if equals:
        return text
    if not rest or rest[0].startswith("--") or rest[0] == "-m" or rest[0] in SHORT:
        raise ConfigError(f"{written} needs a value ({metavar})")
    return rest.pop(0)


def _check_aliases(given: Sequence[GivenFlag]) -> None:
    """Raise `ConfigError` if an alias and its flag have different values."""
    of_aliases = {flag.name: flag for flag in given if _name(flag.written) in ALIASES}
    own = {flag.name: flag for flag in given if _name(flag.written) not in ALIASES}
    for name in of_aliases.keys() & own.keys():
        alias, flag = of_aliases[name], own[name]
        if alias.text.strip() != flag.text.strip():
            means = f" (which means {option(name)} {alias.text})" if alias.typed != alias.text else ""
            raise ConfigError(
                f"{alias.written} {alias.typed}{means} and {flag.written} {flag.text} contradict each other; "
                "leave one out"
            )


def _unknown(written: str, name: str) -> str:
    if name in HINTS:
        return f"no such argument: {written}; {HINTS[name]}"
    close = difflib.get_close_matches(name, (*BY_NAME, *ALIASES), n=1, cutoff=SUGGESTION_CUTOFF)
    if close:
        return f"no such argument: {written}; did you mean {option(close[0])}?"
    return f"no such argument: {written}; --help lists all; arguments of the script come after the script"


def given_values(line: SplitCommandLine, environ: Mapping[str, str]) -> dict[str, Any]:
    """The value of every flag that was given, by field: from the command line, else from the environment.

    An empty variable counts as not set. Raises `ConfigError` for a wrong value.
    """
    return {
        BY_NAME[name].field: readers.read_as(source, BY_NAME[name].read or readers.boolean, text)
        for name, (source, text) in _given(line, environ).items()
    }


def sources(line: SplitCommandLine, environ: Mapping[str, str]) -> dict[str, str]:
    """The source of every value that was given, by the name of its flag: the flag as written, or a variable."""
    return {name: source for name, (source, _) in _given(line, environ).items()}


def deprecations(named: Mapping[str, str]) -> tuple[str, ...]:
    """Return one warning for each old name among the sources that `sources` returns."""
    warnings = []
    for name, source in named.items():
        flag = BY_NAME[name]
        current = flag.option if source.startswith("--") else flag.variables[0]
        if source in flag.deprecated:
            warnings.append(f"{source} is now {current}; the old name works until {OLD_NAMES_UNTIL}")
    return tuple(warnings)


def _given(line: SplitCommandLine, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The source and the text of every value that was given, by the name of its flag."""
    written = {flag.name: (flag.written, "1" if BY_NAME[flag.name].switch else flag.text) for flag in line.given}
    given = {flag.name: written.get(flag.name) or _from_environment(flag, environ) for flag in FLAGS}
    return {name: (source, text) for name, (source, text) in given.items() if source}


def named_values(asked: Mapping[str, str | None], environ: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """Return the values of the flags `names`, by field, for other commands: from `asked`, else from the environment.

    `asked` is by name. The key prefix has its default. Inside a worker the job is the worker's. Raises `ConfigError`.
    """
    return {"key_prefix": JobSettings.key_prefix, **given_values(*_named(asked, environ, names))}


def named_deprecations(
    asked: Mapping[str, str | None], environ: Mapping[str, str], names: Sequence[str]
) -> tuple[str, ...]:
    """The warnings about old names of variables from which `named_values` takes values."""
    return deprecations(sources(*_named(asked, environ, names)))


def _named(
    asked: Mapping[str, str | None], environ: Mapping[str, str], names: Sequence[str]
) -> tuple[SplitCommandLine, Mapping[str, str]]:
    """A command line of the flags that were given, and the environment without the variables of other flags."""
    given = tuple(GivenFlag(name, text, option(name)) for name in names if (text := asked.get(name)) is not None)
    others = {variable for flag in FLAGS if flag.name not in names for variable in flag.variables} | {*START_PORTS}
    ours = {name: text for name, text in environ.items() if name not in others and name != WORKER_MARK}
    return SplitCommandLine(given, "", (), False), ours


def _from_environment(flag: Flag, environ: Mapping[str, str]) -> tuple[str, str]:
    for variable in flag.variables:
        if variable in flag.own_variables and Scope.WORKER in flag.scope and WORKER_MARK in environ:
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
