"""The first call of a training script: join the other workers. `elastic.init`.

It needs no argument under elastic-launch, under torchrun, or in a plain `python train.py`, which is a world of one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from elastic._text import counted, joined
from elastic.channel.messages import GroupFormed, clock
from elastic.errors import ConfigError
from elastic.script.error_report import reporting_config_errors
from elastic.train import report
from elastic.train.process_group import preparing, rendezvous, shutdown

if TYPE_CHECKING:
    import torch

WORKER: Final = "worker"
BACKENDS: Final = ("nccl", "gloo")
SERVER_ROLES: Final = frozenset({"PSERVER", "SERVER"})
"""What TRAINING_ROLE says in a parameter server."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """This worker's place. `local_rank` is its place on its node, `device` what it computes on.

    `generation` is the world it belongs to, 0 outside elastic-launch; `restarts` counts the failures so far that were
    charged to the job. Both are for logs: a script need not look at them.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    backend: str
    generation: int
    restarts: int


_started: list[WorkerContext] = []
"""The context of this process, once it is there."""


def init(role: str | None = None, *, backend: str | None = None, timeout_s: float | None = None) -> WorkerContext:
    """Join the other workers; this worker's place.

    The backend is nccl where a card is visible and gloo elsewhere. With nccl the card of this worker becomes the
    current device; with `backend="gloo"` the device is the CPU. `timeout_s` is the longest that a collective may take
    (torch's default without). `role` is "worker", which is also the default. Returns when all workers are there, and
    says meanwhile who is missing: to the agent, which says it to people. The others are waited for as long, 30 minutes
    without `timeout_s`, and for longer while one of them says that it prepares (`elastic.preparing`). A second call
    returns the same context; so does a call after the script itself has started the process group.

    Raises `ConfigError` when the environment does not fit together; uncaught it is one line and exit code 2. Raises
    `WorkersMissing`, which names them, when workers do not come. What torch says besides is passed on as it is.
    """
    if "elastic.oneflow" in sys.modules:
        from elastic import oneflow

        oneflow.launch_if_collected()
    with reporting_config_errors():
        _check_role(role, os.environ)
        if backend is not None and backend not in BACKENDS:
            raise ConfigError(f"backend is {backend!r}; leave it out, or write one of {', '.join(BACKENDS)}")
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s:g}; a collective needs more than 0 s")
        import torch.distributed as dist

        if not dist.is_available():
            raise ConfigError("this torch was built without torch.distributed; install one that has it")
        if _started and dist.is_initialized():
            return _started[0]
        place = rank_info(os.environ)
    with reporting_config_errors(unrecoverable=False):  # The cards of another node may be there.
        chosen, device = _device(backend, os.environ, place)
    if not dist.is_initialized():
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        if "RANK" in os.environ:
            _join(chosen, place, timeout_s)
        else:  # A store in this process: no port is taken, and the environment stays as it is.
            dist.init_process_group(chosen, store=_store_of_one(), rank=0, world_size=1, timeout=timeout)
        shutdown.arm()
    _started[:] = [
        WorkerContext(
            rank=dist.get_rank(),
            local_rank=place.local_rank,
            world_size=dist.get_world_size(),
            device=device,
            backend=dist.get_backend(),
            generation=_number(os.environ, "ELASTIC_GENERATION", 0),
            restarts=_number(os.environ, "TORCHELASTIC_RESTART_COUNT", 0),
        )
    ]
    return _started[0]


def _join(backend: str, place: RankInfo, timeout_s: float | None) -> None:
    """Meet the other workers, and start the process group with the store where they met."""
    import torch.distributed as dist

    preparing.ready()
    end = report.end()
    meeting = rendezvous.current(os.environ, end)
    if meeting is None:  # A process that a worker forked: what it does with the group is its own affair.
        dist.init_process_group(backend, timeout=None if timeout_s is None else timedelta(seconds=timeout_s))
        return
    store = meeting.meet(rendezvous.LIMIT_S if timeout_s is None else timeout_s)
    store.set_timeout(timedelta(seconds=rendezvous.LIMIT_S if timeout_s is None else timeout_s))
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(meeting.attempt, store),  # type: ignore[attr-defined]  # It is there, and documented.
        rank=place.rank,
        world_size=place.world_size,
        timeout=None if timeout_s is None else timedelta(seconds=timeout_s),
    )
    rendezvous.begin_next_attempt(os.environ, end)
    if end is not None:
        end.send(GroupFormed(clock()))


def _store_of_one() -> Any:
    from torch.distributed import HashStore  # type: ignore[attr-defined]  # It is there, and documented.

    return HashStore()


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What the environment says about the place of this worker."""

    rank: int
    local_rank: int
    world_size: int


def rank_info(environ: Mapping[str, str]) -> RankInfo:
    """The place that torchrun's variables give; without RANK a world of one.

    LOCAL_RANK may be missing, as where each worker has a machine of its own: then it is 0. Raises `ConfigError` when
    the variables contradict each other or one is missing.
    """
    if "RANK" not in environ:
        if environ.get("WORLD_SIZE", "1") != "1":
            raise ConfigError(f"WORLD_SIZE is {environ['WORLD_SIZE']}, but RANK is not set; {_HINT}")
        return RankInfo(0, 0, 1)
    missing = [name for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise ConfigError(f"RANK is set, but {joined(missing)} {'is' if len(missing) == 1 else 'are'} not; {_HINT}")
    rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank = _number(environ, "LOCAL_RANK", 0)
    if rank >= world_size:
        raise ConfigError(f"RANK {rank} is not below WORLD_SIZE {world_size}; {_HINT}")
    if local_rank >= world_size:
        raise ConfigError(f"LOCAL_RANK {local_rank} is not below WORLD_SIZE {world_size}; {_HINT}")
    return RankInfo(rank, local_rank, world_size)


_HINT: Final = "start the script with elastic-launch, or unset what another launcher left"


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A variable that is a whole number from 0 on. An empty one counts as not set."""
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}, not a whole number; {_HINT}")
    return int(text)


def _check_role(role: str | None, environ: Mapping[str, str]) -> None:
    if role is not None and role != WORKER:
        raise ConfigError(f"role is {role!r}; elastic.init joins workers: leave role out, or write role={WORKER!r}")
    found = environ.get("TRAINING_ROLE", "")
    if role is None and found in SERVER_ROLES:
        raise ConfigError(
            f"elastic.init joins workers, and this process is a parameter server (TRAINING_ROLE={found}); call it in "
            "workers only"
        )


def _device(backend: str | None, environ: Mapping[str, str], place: RankInfo) -> tuple[str, torch.device]:
    """The backend and this worker's device, which becomes the current one when it is a card."""
    import torch

    gpus = torch.cuda.device_count() if backend != "gloo" and torch.cuda.is_available() else 0
    if not gpus:
        if backend == "nccl":
            raise ConfigError('no card is visible, and nccl needs one; leave backend out, or write backend="gloo"')
        return backend or "gloo", torch.device("cpu")
    index = gpu_index(environ, place, gpus)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return backend or "nccl", device


def gpu_index(environ: Mapping[str, str], place: RankInfo, gpus: int) -> int:
    """The index of this worker's card among the `gpus` that are visible.

    It is LOCAL_RANK, except where our launcher shows each worker its own card only (--one_card_per_worker). Raises
    `ConfigError` when there are more workers than cards.
    """
    index = place.local_rank
    if "ELASTIC_FENCE" in environ:
        index = _number(environ, "FLAGS_selected_gpus", index)
    if index >= gpus:
        raise ConfigError(
            f"this is worker {place.local_rank} of its node, and {counted(gpus, 'card is', 'cards are')} "
            f"visible (CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); start {gpus} on each "
            'node, or write backend="gloo"'
        )
    return index
