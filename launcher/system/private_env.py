"""The environment that a child of ours inherits: without secrets and without the variables of other workers (pure)."""

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
"""What the agent may know and a training script need not: passwords, secrets, and where they are."""


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
"""What only this agent can say to its workers: an outer launcher's, or a flag that was overruled, is taken out."""


def inheritable_env(base: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """What is passed on of the agent's environment: all but its secrets, its wishes for workers, and `names`."""
    return {name: text for name, text in base.items() if name not in SECRETS | OURS and name not in names}
