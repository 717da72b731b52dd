"""How many workers a node has, and on which cards: --gpus, --nproc_per_node and --local_nodes together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic.errors import ConfigError
from launcher.config.devices import check_named, installed, visible_cards
from launcher.config.readers import SLOTS_MAX

if TYPE_CHECKING:
    from launcher.config.config import Config


def check_relations(config: Config) -> None:
    """Raise `ConfigError` when the flags contradict each other, whatever the machine."""
    named, nodes = len(config.gpus), config.local_nodes or 1
    if config.slots_word == "cpu":
        for flag, given in (("--gpus", bool(named)), ("--one_card_per_worker", config.one_card_per_worker)):
            if given:
                raise ConfigError(f"{flag} and --nproc_per_node cpu contradict each other; leave one out")
    if named % nodes:
        fewer, more = named // nodes * nodes, (named // nodes + 1) * nodes
        raise ConfigError(
            f"--gpus names {_counted(named, 'card')}, which {nodes} nodes cannot share evenly, and every node has as "
            f"many; name {f'{fewer} or {more}' if fewer else more}, or use another --local_nodes"
        )
    if named and config.slots and config.slots * nodes != named:
        each = f" on each of {nodes} nodes" if nodes > 1 else ""
        raise ConfigError(
            f"--gpus names {_counted(named, 'card')}, one worker for each, and --nproc_per_node says {config.slots}"
            f"{each}; leave out --nproc_per_node, or use {named // nodes}"
        )


def found(config: Config, environ: Mapping[str, str]) -> Config:
    """Look at this machine; the config with its cards, its number of workers, and what there is to say about them.

    Raises `ConfigError` for a card that is not there or that CUDA_VISIBLE_DEVICES hides.
    """
    cards, warnings = _cards(config, environ)
    slots, nodes = config.slots or _count(config, len(cards)), config.local_nodes or 1
    if config.one_card_per_worker and 0 < len(cards) < slots * nodes:
        raise ConfigError(
            f"--one_card_per_worker: {slots * nodes} workers have {_counted(len(cards), 'card')} here; use fewer "
            "workers (--nproc_per_node), or leave it out"
        )
    return replace(config, slots=slots, cards=cards, warnings=(*config.warnings, *warnings))


def _cards(config: Config, environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The cards that this machine is to use, and what there is to say about them."""
    if not config.gpus:
        return visible_cards(environ), ()
    here = installed(environ)
    if not here.cards:
        workers = _counted(len(config.gpus), "worker")
        line = (
            f"--gpus {','.join(config.gpus)}: no NVIDIA driver on this machine ({here.trouble}); {workers} on the CPU"
        )
        return (), (line,)
    check_named(config.gpus, here.cards, environ)
    migs = sum(card.startswith("MIG-") for card in config.gpus)
    if migs > 1 and not config.one_card_per_worker:
        line = "a process sees only the first of several MIG devices; add --one_card_per_worker, and use cuda:0"
        return config.gpus, (line,)
    return config.gpus, ()


def _count(config: Config, cards: int) -> int:
    """Workers on each node, when the nodes of this machine share its cards."""
    nodes = config.local_nodes or 1
    if config.gpus:
        return len(config.gpus) // nodes
    if config.slots_word == "cpu":
        return min(len(os.sched_getaffinity(0)) // nodes, SLOTS_MAX) or 1
    if config.slots_word == "gpu" and not cards:
        raise ConfigError("--nproc_per_node gpu: no card is visible here; check nvidia-smi -L and CUDA_VISIBLE_DEVICES")
    return min(cards // nodes, SLOTS_MAX) or 1


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
