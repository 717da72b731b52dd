"""The parts of a job on three nodes, and what connects them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench.pictures.style import BODY, MARGIN, RIGHT, Canvas, Colours

NODES: Final = 3
GAP: Final = 30
NODE_WIDTH: Final = (RIGHT - MARGIN - GAP * (NODES - 1)) / NODES
PAD: Final = 14
ETCD_TOP, ETCD_HEIGHT = 64, 66
NODE_TOP, NODE_HEIGHT = 176, 300
AGENT, FORK, WORKERS = 44, 128, 218
"""Where the boxes of a node begin, below its top."""
BOX: Final = 46
BETWEEN: Final = 10
WORKER_WIDTH: Final = (NODE_WIDTH - 2 * PAD - BETWEEN) / 2


def draw(_: Path, colours: Colours) -> str:
    """The picture. It has no figures."""
    canvas = Canvas("The parts of a job on three nodes", colours)
    canvas.heading(38, canvas.title)
    middle = (MARGIN + RIGHT) / 2
    canvas.box(MARGIN, ETCD_TOP, RIGHT - MARGIN, ETCD_HEIGHT, colours.box, edge=colours.peer, radius=10)
    canvas.text(middle, ETCD_TOP + 27, "etcd", size=BODY, bold=True, anchor="middle")
    canvas.text(middle, ETCD_TOP + 51, "members, leases, generations, events", colour=colours.soft, anchor="middle")
    lefts = [MARGIN + number * (NODE_WIDTH + GAP) for number in range(NODES)]
    for number, left in enumerate(lefts):
        _node(canvas, left, number)
        centre = left + NODE_WIDTH / 2
        canvas.path(
            f"M{centre:.1f} {ETCD_TOP + ETCD_HEIGHT + 3}V{NODE_TOP + AGENT - 3}", colours.soft, begin=True, end=True
        )
    for left in lefts[1:]:
        y = NODE_TOP + AGENT + BOX / 2
        canvas.path(f"M{left - GAP - PAD + 2:.1f} {y:.1f}H{left + PAD - 2:.1f}", colours.ours, width=2.5, dashes="5 4")
    bus = NODE_TOP + WORKERS + BOX + 22
    outer = PAD + WORKER_WIDTH / 2
    canvas.path(f"M{MARGIN + outer:.1f} {bus}H{RIGHT - outer:.1f}", colours.phases[-1], width=2.5)
    bottom = NODE_TOP + NODE_HEIGHT
    y = bottom + 34
    entries = (
        (colours.soft, "", "each agent renews its lease and watches the job in etcd"),
        (colours.ours, "5 4", "links between all agents: heartbeats, and failures in milliseconds"),
        (colours.phases[-1], "", "process group of the workers: NCCL or gloo"),
    )
    for colour, dashes, words in entries:
        canvas.path(f"M{MARGIN} {y - 5}h34", colour, width=2.5, dashes=dashes)
        canvas.text(MARGIN + 46, y, words)
        y += 26
    return canvas.svg(y + 2)


def _node(canvas: Canvas, left: float, number: int) -> None:
    """One node: its agent, its fork server, and its workers."""
    colours = canvas.colours
    canvas.box(left, NODE_TOP, NODE_WIDTH, NODE_HEIGHT, colours.back, edge=colours.line, radius=10)
    inner = NODE_WIDTH - 2 * PAD
    centre = left + NODE_WIDTH / 2
    canvas.text(left + PAD, NODE_TOP + 28, f"node {number + 1}", size=BODY, bold=True)
    _part(canvas, left + PAD, NODE_TOP + AGENT, inner, "agent", colours.ours)
    _part(canvas, left + PAD, NODE_TOP + FORK, inner, "fork server", colours.soft)
    for place in range(2):
        x = left + PAD + place * (WORKER_WIDTH + BETWEEN)
        _part(canvas, x, NODE_TOP + WORKERS, WORKER_WIDTH, f"rank {2 * number + place}", colours.phases[-1])
        canvas.path(
            f"M{x + WORKER_WIDTH / 2:.1f} {NODE_TOP + FORK + BOX + 2}V{NODE_TOP + WORKERS - 3}", colours.soft, end=True
        )
        canvas.path(f"M{x + WORKER_WIDTH / 2:.1f} {NODE_TOP + WORKERS + BOX}v22", colours.phases[-1], width=2.5)
    canvas.path(f"M{centre:.1f} {NODE_TOP + AGENT + BOX + 2}V{NODE_TOP + FORK - 3}", colours.soft, end=True)


def _part(canvas: Canvas, x: float, y: float, width: float, words: str, edge: str) -> None:
    canvas.box(x, y, width, BOX, canvas.colours.box, edge=edge, radius=7)
    canvas.text(x + width / 2, y + 29, words, anchor="middle")
