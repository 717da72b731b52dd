"""`elastic.init`, the first call of a training script: it joins the other workers.

It needs no argument under elastic-launch, under torchrun, or in a plain `python train.py`, where the world size is 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from elastic import environment
from elastic._text import counted
from elastic.channel.messages import GroupFormed, clock
from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.script.error_report import reporting_config_errors
from elastic.train import report
from elastic.train.process_group import preparing, rendezvous, shutdown, topology

if TYPE_CHECKING:
    import torch

WORKER: Final = "worker"
BACKENDS: Final = ("nccl", "gloo")


def init(role: str | None = None, *, backend: str | None = None, timeout_s: float | None = None) -> ProcessEnvironment:
    """Join the other workers: rendezvous, and start the process group.

    It returns when all workers have joined. Until then it reports the missing ranks: to the agent, which logs them, or
    without an agent to the stderr of rank 0. Under elastic-launch and under torchrun it needs no argument; in a plain
    `python train.py` it starts a process group of world size 1. A second call only returns the place of this worker;
    so does a call after the script has started the process group.

    Args:
        role: "worker" or None; both mean the same.
        backend: "nccl" or "gloo". By default nccl if a GPU is visible, otherwise gloo. With nccl this worker's GPU
            becomes the current device; with gloo the device is the CPU.
        timeout_s: The timeout of a collective, in seconds; by default torch's. The rendezvous has the same timeout, or
            1800 s by default, which does not run while a worker prepares (`elastic.preparing`).

    Returns:
        The place of this worker in the job, with its `backend` and `device`. `elastic.env()` then returns the same.

    Raises:
        elastic.errors.ConfigError: An argument or the environment is wrong, or this process is a parameter server. If
            nothing catches it, Python prints one line to stderr and exits with code 2.
        elastic.errors.WorkersMissing: Workers did not join within the timeout. The message names their ranks.
        RuntimeError: torch cannot start the process group.
    """
    if "elastic.oneflow" in sys.modules:
        from elastic import oneflow

        oneflow.launch_if_collected()
    with reporting_config_errors():
        _check_role(role)
        if backend is not None and backend not in BACKENDS:
            raise ConfigError(f"backend is {backend!r}; leave it out, or write one of {', '.join(BACKENDS)}")
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s:g}; a collective needs more than 0 s")
        import torch.distributed as dist

        if not dist.is_available():
            raise ConfigError("this build of torch lacks torch.distributed; install one that includes it")
        place = topology.process_environment()
        if place.backend:
            return place
        to_join = not dist.is_initialized() and environment.names_group(os.environ)
    with reporting_config_errors(unrecoverable=False):  # Another node may have its GPUs.
        chosen, device = _device(backend, os.environ, place)
    if not dist.is_initialized():
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        if to_join:
            _join(chosen, place, timeout)
        else:  # A store in this process needs no port and leaves the environment unchanged.
            store = dist.HashStore()  # type: ignore[attr-defined]  # It is there, and documented.
            dist.init_process_group(chosen, store=store, rank=0, world_size=1, timeout=timeout)
        shutdown.arm()
    topology.mark_joined(device)
    return topology.process_environment()


def _join(backend: str, place: ProcessEnvironment, timeout: timedelta | None) -> None:
    """Wait for the other workers, and start the process group with the store of the rendezvous."""
    import torch.distributed as dist

    preparing.ready()
    end = report.end()
    meeting = rendezvous.current(os.environ, end)
    if meeting is None:  # A process that a worker forked has no rendezvous.
        dist.init_process_group(backend, timeout=timeout)
        return
    limit = timeout or timedelta(seconds=rendezvous.LIMIT_S)
    store = meeting.meet(limit.total_seconds())
    store.set_timeout(limit)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(meeting.attempt, store),  # type: ignore[attr-defined]  # It is there, and documented.
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
    )
    rendezvous.begin_next_attempt(os.environ, end)
    if end is not None:
        end.send(GroupFormed(clock()))


def _check_role(role: str | None) -> None:
    if role is not None and role != WORKER:
        raise ConfigError(f"role is {role!r}; elastic.init joins workers: leave role out, or write role={WORKER!r}")
    if environment.role(os.environ) == "server":
        raise ConfigError(
            "elastic.init joins workers, but this process is a parameter server according to its environment; call it "
            "in workers only"
        )


def _device(backend: str | None, environ: Mapping[str, str], place: ProcessEnvironment) -> tuple[str, torch.device]:
    """Return the backend and this worker's device, and make a GPU the current device."""
    import torch

    gpus = torch.cuda.device_count() if backend != "gloo" and torch.cuda.is_available() else 0
    if not gpus:
        if backend == "nccl":
            raise ConfigError('no GPU is visible, and nccl needs one; leave backend out, or write backend="gloo"')
        return backend or "gloo", torch.device("cpu")
    index = gpu_index(environ, place, gpus)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return backend or "nccl", device


def gpu_index(environ: Mapping[str, str], place: ProcessEnvironment, gpus: int) -> int:
    """Return the index of this worker's GPU among the `gpus` visible ones.

    It is LOCAL_RANK, unless elastic-launch shows each worker only its own GPU (--isolate-gpus). Raises `ConfigError` if
    a node has more workers than GPUs.
    """
    index = place.local_rank
    if "ELASTIC_FENCE" in environ:
        index = environment.number(environ, "FLAGS_selected_gpus", index)
    if index >= gpus:
        raise ConfigError(
            f"this is worker {place.local_rank} of its node, but {counted(gpus, 'GPU is', 'GPUs are')} "
            f"visible (CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); start {gpus} on each "
            'node, or write backend="gloo"'
        )
    return index
