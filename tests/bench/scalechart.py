"""The chart of `tests.bench.scale`: how time, messages and bytes grow with the number of agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from tests.bench.rendezvous import Met

if TYPE_CHECKING:
    from tests.bench.scale import Measured


def draw(found: Mapping[int, Measured], peers: Mapping[int, Met | None], path: Path) -> None:
    """Write the chart as PNG. Both axes are logarithmic: a straight line of slope one is a linear cost."""
    figure, (times, messages, volume) = plt.subplots(1, 3, figsize=(13, 5), dpi=110)
    sizes, rows = list(found), list(found.values())
    met = {size: one for size, one in peers.items() if one is not None}
    times.plot(sizes, [row.meet_s for row in rows], "o-", label="all register → all have the world")
    times.plot(sizes, [row.lost_s for row in rows], "s-", label="one lost → all have the next world")
    times.plot(sizes, [row.change_s for row in rows], "D-", label="one lost → all workers run again, on one machine")
    times.plot(sizes, [row.apply_s for row in rows], "^-", label="one agent applies it (CPU)")
    times.plot(list(met), [one.seconds for one in met.values()], "x--", color="gray", label="torch: all meet")
    times.set_title("seconds")
    messages.plot(sizes, [row.meet.messages for row in rows], "o-", label="all join")
    messages.plot(sizes, [row.lost.messages for row in rows], "s-", label="one lost, until all run again")
    messages.plot(list(met), [2 * one.calls for one in met.values()], "x--", color="gray", label="torch: all join")
    messages.set_title("messages to and from the store, in all")
    volume.plot(sizes, [row.document_bytes for row in rows], "o-", label="document of a world")
    volume.plot(list(met), [one.state_bytes for one in met.values()], "x--", color="gray", label="torch: its state")
    volume.set_title("bytes")
    for axes in (times, messages, volume):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("agents")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14))  # Over the axes it would hide a line.
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
