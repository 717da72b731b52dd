"""How a setting of `elastic-launch` is defined: a field of a group, whose metadata is the flag.

The groups are in `node_settings`, `job_settings` and `worker_settings`; `launcher.config.config.Config` has them all.
Parser, help, variables and reference are made from the fields (`launcher.config.flags`).
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
    """The programs that need a setting, in addition to the agent of this node, which needs every one."""

    PARENT = enum.auto()
    """The process that starts the nodes of this machine. It does what the flag says, and the nodes do not get it."""
    STORE = enum.auto()
    """Every program that opens the job's store: `elastic-ctl` and the doctor have the flag, too."""
    JOB = enum.auto()
    """All nodes: it is the field of the same name in the job's spec."""
    WORKER = enum.auto()
    """Workers find its variable in their environment. A launcher that a worker starts does not read it there."""


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line flag of a setting.

    `read` turns text into the field's value and raises ValueError with one clear sentence; None marks a switch.
    `shown` is the default in the help. `environs` are other launchers' variables, read after our own. One that counts
    `once` is not repeated by the command that starts a further node in another terminal.
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
    field: str = ""

    @property
    def switch(self) -> bool:
        """Tell whether the flag takes no value."""
        return self.read is None

    @property
    def own_variable(self) -> str:
        """The variable that is named after the flag."""
        return f"ELASTIC_{self.name.upper()}"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that stand for it, the first one being the one to show."""
        short = (self.own_variable.removeprefix("ELASTIC_"),) if self.name.startswith("elastic_") else ()
        return (*short, self.own_variable, *self.environs)


class Settings:
    """The base class of groups of settings: `help_group` is where the help shows their flags."""

    help_group: ClassVar = ""

    def __init_subclass__(cls, group: str = "") -> None:
        """Take the group of the help."""
        cls.help_group = group


def setting(default: Any, help_text: str, *args: Any, **flag: Any) -> Any:
    """Make the field of a setting: its default, and the rest of its `Flag` in the order there.

    The flag is named after the field, without the unit (`grace_s` is `--grace`), unless it has a `name`; its place in
    the help is the group of the field's class, unless it has a `group`.
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
