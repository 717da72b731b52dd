"""The library of elastic-launch for training scripts.

A script that uses all of it::

    import torch
    import elastic

    worker = elastic.init()                                            # joins the other workers
    model = torch.nn.parallel.DistributedDataParallel(make_model().to(worker.device))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = elastic.GlobalBatch(total=512, max_per_rank=64)            # the same steps at any world size
    sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=0, batch=batch)
    loader = elastic.DataLoader(dataset, sampler=sampler, num_workers=4)
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
    state.restore()                                                    # the newest step, saved at any world size
    for epoch in elastic.epochs(state, 30):
        for inputs, targets in loader:                                 # only what this epoch has not used yet
            with batch.accumulate(model):
                loss = loss_of(model(inputs.to(worker.device)), targets.to(worker.device))
                batch.scale_loss(loss).backward()
            if batch.is_last_micro_batch:
                optimizer.step()
                optimizer.zero_grad()
                state.commit(every=500, memory_every=1, loss=loss)     # to memory each step, to disk every 500

Start it with `elastic-launch --np 1:4 train.py`, with torchrun, or with plain Python. When nodes fail or join,
elastic-launch restarts it on the available nodes, and it resumes from its newest step.

`elastic.train.checkpoint` saves and loads checkpoints for scripts without a `State`; `elastic.train.ps` has parameter
servers; `elastic.testing` runs a function as several replicas while the world size changes; `elastic.errors` has the
exceptions; `elastic.oneflow` has OneFlow's names.

`import elastic` loads neither torch nor gRPC: each name is loaded at its first use.
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
"""The public names of `elastic`, and the modules that define them."""

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
    """Load a name at its first use; after that it is an ordinary attribute."""
    if name not in LAZY:
        raise AttributeError(f"module 'elastic' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})
