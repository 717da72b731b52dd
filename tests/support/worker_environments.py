"""The environment of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic.core.model import ChangeReason, Generation, GenerationMember
from launcher.config.worker_settings import CheckpointSettings
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
    gpus: tuple[str, ...] = (),
    one_gpu: bool = False,
    no_gpu: bool = False,
    servers: tuple[str, ...] = (),
    learned: JobContext | None = None,
    no_torch_patch: bool = False,
    **asked: Any,
) -> dict[str, str]:
    told = LaunchContext(
        base=base or {},
        generation=world,
        master=master,
        restarts=2,
        restarts_max=3,
        job_id="j1",
        node_id=f"n{m_id}",
        incarnation="abc",
        endpoints_file="/data/log/endpoints.log",
        interface=interface,
        servers=servers,
        asked=CheckpointSettings(checkpoint_dir="/data/checkpoints/j1", **asked),
        no_torch_patch=no_torch_patch,
        learned=learned or JobContext(),
    )
    return worker_environment(
        CollectiveContext(
            launch=told,
            m_id=m_id,
            local_rank=local_rank,
            error_file="/data/log/error.3.json",
            progress_file="/data/log/progress.3",
            gpus=gpus,
            one_gpu=one_gpu,
            no_gpu=no_gpu,
        )
    )
