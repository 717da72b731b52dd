"""The environment of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic.core.model import ChangeReason, Generation, GenerationMember
from launcher.config.config import Config
from launcher.workers.environment import CollectiveContext, JobContext, LaunchContext, worker_environment


def generation(nodes: int = 2, slots: int = 2, host: str = "10.0.0.{}") -> Generation:
    return Generation(
        g=7,
        run=1,
        leader="t",
        why=ChangeReason.FIRST,
        reason="2 of 2 nodes are here",
        slots=slots,
        members=tuple(
            GenerationMember(
                node=f"n{m_id}",
                host=host.format(m_id),
                masters=(5000,),
                ports=tuple(6000 + m_id * slots + n_id for n_id in range(slots)),
            )
            for m_id in range(nodes)
        ),
    )


def environment(
    world: Generation,
    m_id: int = 1,
    local_rank: int = 1,
    *,
    base: Mapping[str, str] | None = None,
    interface: str | None = None,
    master: str = "10.0.0.0:5000",
    learned: JobContext | None = None,
    **asked: Any,
) -> dict[str, str]:
    """Of a worker on a node with two cards, unless something else is `asked`."""
    settings = {"gpu_ids": ("0", "1"), "checkpoint_dir": "/data/checkpoints/j1", **asked}
    told = LaunchContext(
        base=base or {},
        config=Config(script="train.py", job_id="j1", **settings),
        generation=world,
        master=master,
        restarts=2,
        restarts_max=3,
        node_id=f"n{m_id}",
        incarnation="abc",
        endpoints_file="/data/log/endpoints.log",
        interface=interface,
        learned=learned or JobContext(),
    )
    return worker_environment(
        CollectiveContext(
            launch=told,
            m_id=m_id,
            local_rank=local_rank,
            error_file="/data/log/error.3.json",
            progress_file="/data/log/progress.3",
        )
    )
