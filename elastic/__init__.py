"""The elastic-launch library: what a training script imports, and the core that the launcher runs on.

The names below are loaded when they are used: `import elastic` alone loads neither torch nor grpc.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from elastic.environment import ProcessEnvironment as ProcessEnvironment
    from elastic.script.relaunch import config as config
    from elastic.script.relaunch import launch as launch
    from elastic.train.checkpoint.export import export as export
    from elastic.train.data.batch import GlobalBatch as GlobalBatch
    from elastic.train.data.batch import batch as batch
    from elastic.train.data.loader import DataLoader as DataLoader
    from elastic.train.data.sampler import ElasticSampler as ElasticSampler
    from elastic.train.data.stream import ElasticStream as ElasticStream
    from elastic.train.process_group.init import init as init
    from elastic.train.process_group.preparing import preparing as preparing
    from elastic.train.process_group.preparing import ready as ready
    from elastic.train.process_group.topology import env as env
    from elastic.train.report import report as report
    from elastic.train.state import State as State
    from elastic.train.state import epochs as epochs

LAZY: Final[Mapping[str, str]] = {
    "DataLoader": "elastic.train.data.loader",
    "ElasticSampler": "elastic.train.data.sampler",
    "ElasticStream": "elastic.train.data.stream",
    "GlobalBatch": "elastic.train.data.batch",
    "ProcessEnvironment": "elastic.environment",
    "State": "elastic.train.state",
    "batch": "elastic.train.data.batch",
    "config": "elastic.script.relaunch",
    "env": "elastic.train.process_group.topology",
    "epochs": "elastic.train.state",
    "export": "elastic.train.checkpoint.export",
    "init": "elastic.train.process_group.init",
    "launch": "elastic.script.relaunch",
    "preparing": "elastic.train.process_group.preparing",
    "ready": "elastic.train.process_group.preparing",
    "report": "elastic.train.report",
}
"""What `elastic.<name>` is, and the module that has it."""

__all__ = [
    "DataLoader",
    "ElasticSampler",
    "ElasticStream",
    "GlobalBatch",
    "ProcessEnvironment",
    "State",
    "batch",
    "config",
    "env",
    "epochs",
    "export",
    "init",
    "launch",
    "preparing",
    "ready",
    "report",
]


def __getattr__(name: str) -> Any:
    """Load a name at its first use; from then on it is an attribute like any other, as fast."""
    if name not in LAZY:
        raise AttributeError(f"module 'elastic' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
