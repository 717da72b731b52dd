"""What `elastic-launch --explain` prints: every setting, its value, and where the value comes from.

Secrets, passwords and the arguments of the script are never printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from launcher.config import paddlecloud
from launcher.config.config import Config
from launcher.config.durations import METAVAR, duration_text
from launcher.config.flags import BY_NAME, FLAGS
from launcher.config.help_page import shown_default
from launcher.config.setting import HELP_GROUPS, SERVERS, Flag
from launcher.config.store_access import PASSWORD, SECRET
from launcher.config.torchrun_names import ALIASES
from launcher.net.endpoints import join_host_port

VALUE_WIDTH_MAX: Final = 44
"""Columns for values; a longer one moves the source on its row to the right."""
RANDOM_JOB_ID: Final = "local-<random>"
"""The placeholder for a name that differs at each start."""


class SettingRow(NamedTuple):
    """One line of the table."""

    name: str
    value: str
    source: str


def explained(config: Config, named: Mapping[str, str], *, random_job_id: bool) -> str:
    """The table of a config that went through `check`.

    `named` has the source of every flag that was given, by name (`argv.sources`). With `random_job_id` nothing names
    the job, so that its name, and the directories that are named after it, differ from start to start.
    """
    groups = {"Script": _script(config)}
    for group in HELP_GROUPS:
        if group != SERVERS or config.roles is not None:
            groups[group] = [_row(flag, config, named) for flag in FLAGS if flag.group == group]
    groups["Secrets (never shown)"] = _secrets(config)
    rows = [row for group in groups.values() for row in group]
    names = max(len(row.name) for row in rows)
    values = min(max(len(row.value) for row in rows), VALUE_WIDTH_MAX)
    text = "\n".join(
        f"{group}:\n" + "".join(f"  {row.name:<{names}}  {row.value:<{values}}  {row.source}\n" for row in listed)
        for group, listed in groups.items()
    )
    return text.replace(config.job_id, RANDOM_JOB_ID) if random_job_id else text


def _script(config: Config) -> list[SettingRow]:
    runner = f"run by {sys.executable}" if config.python else "run as a program"
    what = f"module {config.script}" if config.module else config.script
    return [
        SettingRow("script", what, runner),
        SettingRow("arguments of the script", f"{len(config.script_args)} (not shown)", "command line"),
    ]


def _row(flag: Flag, config: Config, named: Mapping[str, str]) -> SettingRow:
    source = _source(flag, named.get(flag.name, ""))
    if flag.name == "ips" and config.paddlecloud:
        source = f"environment variable {paddlecloud.LIST}, of another launcher"
    return SettingRow(flag.option, _value(flag, config, given=flag.name in named), source)


def _source(flag: Flag, source: str) -> str:
    if not source:
        return "default"
    kind = "flag" if source.startswith("--") else "environment variable"
    if source in flag.deprecated:
        return f"{kind} {source}, an old name"
    if source.removeprefix("--").replace("-", "_") in ALIASES:
        return f"{kind} {source}, torchrun's name"
    own = source.startswith("--") or source in flag.own_variables
    return f"{kind} {source}" if own else f"{kind} {source}, of another launcher"


RESOLVED: Final[Mapping[str, Callable[[Config], str]]] = {
    "gpus": lambda config: ",".join(config.gpu_ids) or "none: workers run on the CPU",
    "elastic_server": lambda config: ",".join(config.endpoints),
    "local_nodes": lambda config: str(config.local_nodes or 1),
    "port_range": lambda config: ":".join(map(str, config.port_range or ())),
    "metrics_port": lambda config: join_host_port(*config.metrics_at) if config.metrics_at else "",
}
"""Settings whose value is written in another way than its kind says; "" where the default counts."""


def _value(flag: Flag, config: Config, *, given: bool) -> str:
    """Return the value as users write it; if it is empty, the default that the help shows."""
    if flag.name in RESOLVED:
        return RESOLVED[flag.name](config) or shown_default(flag)
    value = getattr(config, flag.field)
    if value is None and given:
        return "off"
    if value is None or value in ("", ()) or (not value and not given and flag.shown):
        return shown_default(flag)
    if flag.switch:
        return "on" if value else "off"
    if flag.metavar == METAVAR:
        return duration_text(value)
    if flag.metavar == "SIZE":
        return f"{value} bytes" if given else shown_default(flag)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _secrets(config: Config) -> list[SettingRow]:
    login = config.login
    return [
        _secret("job secret", login.secret, config.job_secret_file, SECRET, made=login.made),
        _secret("password of --etcd-user", login.password, config.etcd_password_file, PASSWORD),
    ]


def _secret(name: str, secret: str, file: str, variable: str, *, made: bool = False) -> SettingRow:
    if not secret:
        return SettingRow(name, "none", "default")
    if made:
        return SettingRow(name, "a random one at each start", f"default of {BY_NAME['serve'].option}")
    return SettingRow(name, "set", f"file {file}" if file else f"environment variable {variable}")
