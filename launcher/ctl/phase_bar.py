"""The phases of a recovery as a bar for a terminal, each as long as its share of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from elastic._text import time_text
from launcher.history.recovery import PhaseEnd

if TYPE_CHECKING:
    from rich.text import Text

WIDTH: Final = 60
"""Cells of a bar."""
STYLES: Final[Mapping[str, str]] = {
    PhaseEnd.EARLIER: "bright_black",
    PhaseEnd.JOINED: "bright_blue",
    PhaseEnd.MET: "blue",
    PhaseEnd.DETECTED: "red",
    PhaseEnd.ASSIGNED: "bright_red",
    PhaseEnd.DECIDED: "yellow",
    PhaseEnd.PUBLISHED: "bright_yellow",
    PhaseEnd.STOPPED: "magenta",
    PhaseEnd.HEARD_GO: "bright_magenta",
    PhaseEnd.SPAWNED: "cyan",
    PhaseEnd.ASKED_FOR_GROUP: "bright_cyan",
    PhaseEnd.GROUPED: "blue",
    PhaseEnd.RESTORED: "bright_blue",
    PhaseEnd.SERVED: "green",
    PhaseEnd.STEPPED: "green",
}


def widths(lengths: Sequence[float], cells: int) -> list[int]:
    """Share `cells` among the lengths in proportion; the largest remainders get the cells that are left over."""
    total = sum(length for length in lengths if length > 0)
    if total <= 0:
        return [0] * len(lengths)
    shares = [max(length, 0.0) / total * cells for length in lengths]
    whole = [int(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda at: whole[at] - shares[at])
    for at in by_rest[: cells - sum(whole)]:
        whole[at] += 1
    return whole


def bar(phases: Mapping[str, float], width: int, *, ascii_only: bool) -> Text:
    """Draw the bar, and below it the name of each phase, if it fits, where its cells begin."""
    from rich.text import Text

    drawn, names = Text(), Text()
    cells = widths(list(phases.values()), min(width, WIDTH))
    for (name, length), count in zip(phases.items(), cells, strict=True):
        style = STYLES.get(name, "white")
        drawn.append(("#" if ascii_only else "█") * count, style)
        label = f"{name} {time_text(length, 2)}"
        if count > len(label):
            names.append(label.ljust(count), style)
        else:
            names.append(" " * count)
    drawn.append(f" {time_text(sum(phases.values()), 2)}")
    names.rstrip()
    return Text("\n").join([drawn, names]) if names.plain else drawn
