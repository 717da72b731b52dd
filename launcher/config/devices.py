"""The GPUs of this machine, found without importing torch and without touching CUDA, and the number of workers.

A GPU has a number, which is the one of `nvidia-smi` and of CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID, and a UUID. CUDA
gets the names of --gpus as they were written; this module only compares them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from elastic._text import counted
from elastic.errors import ConfigError
from launcher.config.readers import SLOTS_MAX

if TYPE_CHECKING:
    from launcher.config.config import Config

PROBE_TIMEOUT_S = 20.0
"""nvidia-smi takes some seconds on a machine with many GPUs and no persistence daemon."""

_GPU_LINE = re.compile(r"GPU (\d+): .*?(?:\(UUID: (GPU-[^)\s]+)\))?\s*")
_MIG_LINE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)\s*")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi -L` lists it. `uuid` is "" if it shows none; `migs` are its MIG devices."""

    number: str
    uuid: str
    migs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The UUID, or else the number: one name for all spellings."""
        return self.uuid or self.number


@dataclass(frozen=True, slots=True)
class InstalledGpus:
    """The GPUs of this machine, by number; `problem` says why there are none."""

    gpus: tuple[Gpu, ...]
    problem: str = ""


def installed_gpus(environ: Mapping[str, str]) -> InstalledGpus:
    """Ask `nvidia-smi` for the GPUs of this machine, including those that CUDA_VISIBLE_DEVICES hides."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return InstalledGpus((), f"nvidia-smi did not answer within {PROBE_TIMEOUT_S:g} s")
    except OSError as error:
        return InstalledGpus((), f"nvidia-smi: {error.strerror}")
    if listed.returncode:
        words = " ".join((listed.stderr or listed.stdout).split())
        return InstalledGpus((), f"nvidia-smi: {words or f'exit code {listed.returncode}'}")
    gpus = read_list(listed.stdout)
    return InstalledGpus(gpus, "" if gpus else "nvidia-smi lists no GPU")


def read_list(text: str) -> tuple[Gpu, ...]:
    """The GPUs in the output of `nvidia-smi -L`."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        if gpu := _GPU_LINE.fullmatch(line):
            gpus.append(Gpu(gpu[1], gpu[2] or ""))
        elif (mig := _MIG_LINE.fullmatch(line)) and gpus:
            gpus[-1] = replace(gpus[-1], migs=(*gpus[-1].migs, mig[1]))
    return tuple(gpus)


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them, in its order; without it, all that nvidia-smi lists.

    Like CUDA, the list ends before the first id that is negative. A machine without a driver has none.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return tuple(gpu.number for gpu in installed_gpus(environ).gpus)
    gpus = map(str.strip, named.split(","))
    return tuple(takewhile(lambda gpu: gpu and not gpu.startswith("-") and gpu != "NoDevFiles", gpus))


def check_named(named: Sequence[str], installed: Sequence[Gpu], environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the GPUs named with --gpus exist, are visible, and are different ones.

    `installed` are the GPUs of this machine. A MIG device is visible when it or its GPU is.
    """
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    visible = None if shown is None else {_find(spelling, installed)[0] for spelling in visible_gpus(environ)}
    spellings: dict[str, str] = {}
    for spelling in named:
        name, gpu = _find(spelling, installed)
        if not name and len(_matching(spelling, installed)) > 1:
            raise ConfigError(f"--gpus: {spelling} begins the UUIDs of several GPUs; {_there_is(spelling, installed)}")
        if not name:
            raise ConfigError(f"--gpus: there is no GPU {spelling} on this machine; {_there_is(spelling, installed)}")
        if name in spellings:
            raise ConfigError(f"--gpus: {spellings[name]} and {spelling} are the same GPU; name each GPU once")
        spellings[name] = spelling
        if visible is not None and not visible & {name, gpu}:
            raise ConfigError(
                f"--gpus: GPU {spelling} is not in CUDA_VISIBLE_DEVICES ({shown or 'empty, which hides every GPU'}); "
                "name GPUs of that list, or unset it"
            )


def unused_gpus(used: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """The visible GPUs of this machine that are not among `used`, however those are named."""
    installed = installed_gpus(environ).gpus
    names = {_find(spelling, installed)[0] for spelling in used}
    return tuple(spelling for spelling in visible_gpus(environ) if _find(spelling, installed)[0] not in names)


def share_gpus(gpus: Sequence[str], nodes: int, slots: int) -> tuple[tuple[str, ...], ...] | None:
    """Give each of `nodes` nodes on this machine `slots` separate GPUs; None if there are not enough."""
    if nodes * slots > len(gpus):
        return None
    return tuple(tuple(gpus[node * slots : (node + 1) * slots]) for node in range(nodes))


def _find(named: str, installed: Sequence[Gpu]) -> tuple[str, str]:
    """Return the device that `named` spells, and the GPU that it is or that contains it; "" if there is none.

    As with CUDA, the beginning of a UUID is enough if no other GPU's UUID begins with it.
    """
    matching = _matching(named, installed)
    return matching[0] if len(matching) == 1 else ("", "")


def _matching(named: str, installed: Sequence[Gpu]) -> list[tuple[str, str]]:
    """All devices that `named` may spell, each with the GPU that it is or belongs to.

    The old name of a MIG device, MIG-GPU-<uuid>/<instance>/<instance>, is accepted if the GPU exists.
    """
    if named.isdecimal():
        return [(gpu.name, gpu.name) for gpu in installed if gpu.number == str(int(named))]
    if named.startswith("MIG-GPU-"):
        old = named.removeprefix("MIG-").partition("/")[0]
        return [(named, gpu.name) for gpu in installed if gpu.uuid == old or named in gpu.migs]
    if named.startswith("MIG-"):
        return [(mig, gpu.name) for gpu in installed for mig in gpu.migs if mig.startswith(named)]
    return [(gpu.name, gpu.name) for gpu in installed if gpu.uuid.startswith(named)]


def _there_is(wanted: str, installed: Sequence[Gpu]) -> str:
    """The GPUs or MIG devices of this machine, by number or UUID as `wanted` is written."""
    if wanted.isdecimal():
        return "there are: " + ", ".join(gpu.number for gpu in installed)
    if wanted.startswith("MIG-"):
        migs = [mig for gpu in installed for mig in gpu.migs]
        return "there are: " + ", ".join(migs) if migs else "no GPU has MIG devices"
    return "there are: " + ", ".join(gpu.name for gpu in installed)


def check_relations(config: Config) -> None:
    """Raise `ConfigError` when the flags contradict each other, whatever the machine."""
    named, nodes = len(config.gpus), config.local_nodes or 1
    if config.slots_word == "cpu":
        for flag, given in (("--gpus", bool(named)), ("--isolate-gpus", config.isolate_gpus)):
            if given:
                raise ConfigError(f"{flag} and --nproc-per-node cpu contradict each other; leave one out")
    if named % nodes:
        fewer, more = named // nodes * nodes, (named // nodes + 1) * nodes
        raise ConfigError(
            f"--gpus names {counted(named, 'GPU')}, which {nodes} nodes cannot share evenly, and every node has the "
            f"same number; name {f'{fewer} or {more}' if fewer else more}, or use another --local-nodes"
        )
    if named and config.slots and config.slots * nodes != named:
        each = f" on each of {nodes} nodes" if nodes > 1 else ""
        raise ConfigError(
            f"--gpus names {counted(named, 'GPU')}, one worker for each, and --nproc-per-node is {config.slots}"
            f"{each}; leave out --nproc-per-node, or use {named // nodes}"
        )


def resolve_gpus(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the config with the GPUs of this machine, the number of workers, and warnings about them.

    Raises `ConfigError` for a GPU that does not exist or that CUDA_VISIBLE_DEVICES hides.
    """
    gpus, warnings = _gpus(config, environ)
    slots, nodes = config.slots or _count(config, len(gpus)), config.local_nodes or 1
    if config.isolate_gpus and 0 < len(gpus) < slots * nodes:
        raise ConfigError(
            f"--isolate-gpus: {slots * nodes} workers share {counted(len(gpus), 'GPU')} here; use fewer "
            "workers (--nproc-per-node), or leave it out"
        )
    return replace(config, slots=slots, gpu_ids=gpus, warnings=(*config.warnings, *warnings))


def _gpus(config: Config, environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the GPUs that this machine uses, and warnings about them."""
    if not config.gpus:
        return visible_gpus(environ), ()
    installed = installed_gpus(environ)
    if not installed.gpus:
        workers = counted(len(config.gpus), "worker")
        line = (
            f"--gpus {','.join(config.gpus)}: no NVIDIA driver on this machine ({installed.problem}); "
            f"{workers} on the CPU"
        )
        return (), (line,)
    check_named(config.gpus, installed.gpus, environ)
    migs = sum(gpu.startswith("MIG-") for gpu in config.gpus)
    if migs > 1 and not config.isolate_gpus:
        line = "a process sees only the first of several MIG devices; add --isolate-gpus, and use cuda:0"
        return config.gpus, (line,)
    return config.gpus, ()


def _count(config: Config, gpus: int) -> int:
    """Workers on each node, when the nodes of this machine share its GPUs."""
    nodes = config.local_nodes or 1
    if config.gpus:
        return len(config.gpus) // nodes
    if config.slots_word == "cpu":
        return min(len(os.sched_getaffinity(0)) // nodes, SLOTS_MAX) or 1
    if config.slots_word == "gpu" and not gpus:
        raise ConfigError("--nproc-per-node gpu: no GPU is visible here; check nvidia-smi -L and CUDA_VISIBLE_DEVICES")
    return min(gpus // nodes, SLOTS_MAX) or 1
