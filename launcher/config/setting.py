"""How a setting of `elastic-launch` is defined: a field of a group, whose metadata is the flag.

The groups are in `node_settings`, `job_settings` and `worker_settings`; `launcher.config.config.Config` has them all.
Parser, help, variables and reference are generated from the fields (`launcher.config.flags`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

BASE, COLLECTIVE, SERVERS, ELASTIC = "Base", "Collective", "Parameter-Server", "Elastic"
WORKERS, LOGS = "Workers", "Logs"
HELP_GROUPS: Final = (BASE, COLLECTIVE, SERVERS, ELASTIC, WORKERS, LOGS)
"""The groups of the help, in their order."""

WORKER_MARK: Final = "ELASTIC_FENCE"
"""Only the environment of a worker has this variable."""


class Scope(enum.Flag):
    """The programs that need a setting, in addition to the agent of this node, which needs all of them."""

    PARENT = enum.auto()
    """The process that starts the nodes of this machine. It acts on the flag, and does not pass it to the nodes."""
    STORE = enum.auto()
    """Every program that connects to etcd: `elastic-ctl` and the doctor also have the flag."""
    JOB = enum.auto()
    """All nodes: it is the field of the same name in the job's spec."""
    WORKER = enum.auto()
    """Workers have its variable in their environment. A launcher that a worker starts does not read it there."""


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line flag of a setting.

    `read` turns text into the field's value and raises ValueError with one clear sentence; None marks a switch.
    `shown` is the default in the help. `environs` are variables of other launchers, which count after the flag's own.
    A flag with `once` is not repeated in the command that starts a further node in another terminal. `variable`
    replaces the variable that is named after the flag. `old_name` and `old_variables` are accepted, with a warning.
    `short` is a letter: `v` for `-v`.
    """

    default: Any
    help: str
    read: Callable[[str], Any] | None = None
    metavar: str = ""
    shown: str = ""
    name: str = ""
    group: str = ""
    environs: tuple[str, ...] = ()
    scope: Scope = Scope(0)
    once: bool = False
    short: str = ""
    variable: str = ""
    old_name: str = ""
    old_variables: tuple[str, ...] = ()
    field: str = ""

    @property
    def switch(self) -> bool:
        """Return whether the flag takes no value."""
        return self.read is None

    @property
    def option(self) -> str:
        """The flag as people write it: with hyphens."""
        return option(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The flag as people write it, the short form first."""
        return (f"-{self.short}", self.option) if self.short else (self.option,)

    @property
    def own_variables(self) -> tuple[str, ...]:
        """The environment variables of this project that stand for it: the current one, then earlier names."""
        old = (f"ELASTIC_{self.old_name.upper()}",) if self.old_name else ()
        return (self.variable or f"ELASTIC_{self.name.upper()}", *old, *self.old_variables)

    @property
    def deprecated(self) -> tuple[str, ...]:
        """The old names that are accepted with a warning: of the flag, as it is written, and of its variables.

        A variable that repeats the prefix, ELASTIC_ELASTIC_SERVER, is named after its flag and stays.
        """
        named_after_it = f"ELASTIC_{self.name.upper()}" if self.name.startswith("elastic_") else ""
        old = (option(self.old_name),) if self.old_name else ()
        return (*old, *(variable for variable in self.own_variables[1:] if variable != named_after_it))

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that stand for it, the first one being the one to show."""
        return (*self.own_variables, *self.environs)


def option(name: str) -> str:
    """A flag's name as people write it: `--job-id` for `job_id`."""
    return "--" + name.replace("_", "-")


class Settings:
    """The base class of groups of settings: `help_group` is where the help shows their flags."""

    help_group: ClassVar = ""

    def __init_subclass__(cls, group: str = "") -> None:
        """Take the group of the help."""
        cls.help_group = group


def setting(default: Any, help_text: str, *args: Any, **flag: Any) -> Any:
    """Return the dataclass field of a setting, from its default and the further arguments of `Flag`, in their order.

    The flag is named after the field, without the unit (`stop_timeout_s` is `--stop-timeout`), unless it has a `name`.
    The help shows it in the group of the field's class, unless it has a `group`.
    """
    return dataclasses.field(default=default, metadata={"flag": Flag(default, help_text, *args, **flag)})


def flags_of(group: type[Settings]) -> tuple[Flag, ...]:
    """The flags of a group of settings, in the order of its fields."""
    return tuple(
        dataclasses.replace(
            flag,
            name=flag.name or field.name.removesuffix("_s").removesuffix("_bytes"),
            group=flag.group or group.help_group,
            field=field.name,
        )
        for field in dataclasses.fields(group)  # type: ignore[arg-type]
        if (flag := field.metadata.get("flag"))
    )
