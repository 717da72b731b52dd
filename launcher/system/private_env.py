"""The environment of child processes: without secrets and without the variables of other workers (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

SECRETS: Final = frozenset(
    {
        "ELASTIC_ETCD_PASSWORD",
        "ELASTIC_ETCD_PASSWORD_FILE",
        "ELASTIC_ETCD_KEY",
        "ELASTIC_JOB_SECRET",
        "ELASTIC_JOB_SECRET_FILE",
    }
)
"""Variables that a training script does not need: passwords, secrets, and their files."""


OURS: Final = frozenset(
    {
        "ELASTIC_RESUME_FROM",
        "ELASTIC_RESTORE_STEP",
        "ELASTIC_ALLOW_ROLLBACK",
        "ELASTIC_CHECK_NAN",
        "ELASTIC_NO_TORCH_PATCH",
        "ELASTIC_SAVED",
        "ELASTIC_CHANNEL",
    }
)
"""Variables that only this agent may set for its workers: those of an outer launcher are removed."""


def inheritable_env(base: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the agent's environment without its secrets, the variables that it sets for workers, and `names`."""
    return {name: text for name, text in base.items() if name not in SECRETS | OURS and name not in names}
