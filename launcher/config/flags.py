"""Every flag of `elastic-launch`, made from the settings of `Config`, and the flags that other commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from launcher.config.config import Config
from launcher.config.setting import HELP_GROUPS, Flag, Scope, flags_of

FLAGS: Final = tuple(
    sorted(
        (flag for group in Config.__bases__ for flag in flags_of(group)), key=lambda flag: HELP_GROUPS.index(flag.group)
    )
)
"""Every flag, in the order of the help."""
BY_NAME: Final[Mapping[str, Flag]] = {flag.name: flag for flag in FLAGS}


def of_scope(scope: Scope) -> tuple[Flag, ...]:
    """The flags of all settings that concern `scope`."""
    return tuple(flag for flag in FLAGS if scope in flag.scope)


JOB_FLAGS: Final = tuple(flag.name for flag in of_scope(Scope.STORE))
"""The flags by which other commands find a job."""
STORE_FLAGS: Final = tuple(name for name in JOB_FLAGS if name != "job_id")
"""Those by which they find the store."""
