"""The cards of this machine, counted without importing torch and without touching CUDA."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

PROBE_TIMEOUT_S = 20.0
"""nvidia-smi takes some seconds on a machine with many cards and no persistence daemon."""


def visible_cards(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The cards as CUDA_VISIBLE_DEVICES names them, in its order; without it, all that nvidia-smi lists.

    Like CUDA, the list ends before the first id that is negative. A machine without a driver has none.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return tuple(str(index) for index in range(_count_installed(environ)))
    cards: list[str] = []
    for card in (part.strip() for part in named.split(",")):
        if not card or card.startswith("-") or card == "NoDevFiles":
            break
        cards.append(card)
    return tuple(cards)


def share(cards: Sequence[str], nodes: int, slots: int) -> tuple[tuple[str, ...], ...] | None:
    """Give each of `nodes` nodes on this machine `slots` cards of its own; None if there are not enough."""
    if nodes * slots > len(cards):
        return None
    return tuple(tuple(cards[node * slots : (node + 1) * slots]) for node in range(nodes))


def _count_installed(environ: Mapping[str, str]) -> int:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):  # No driver, or one that does not answer: no card can be used.
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
