"""The table "recovery time by scenario": how long each launcher takes until the next step, made of docs/bench.

A cell has the median, the smallest and the largest round, and how many rounds there were. What was not measured is
empty; a scenario that was not measured at all has no row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.bench import jobs, torchft_jobs
from tests.bench.recovery import KINDS, SILENCE_SHORT_S, STATE_MB
from tests.bench.results import NO_LEARN, OURS, Figure

COLUMNS = {
    "elastic-launch": OURS,
    "elastic-launch `--no-learn`": NO_LEARN,
    "torchrun, tuned": jobs.TUNED,
    "torchrun": jobs.DEFAULTS,
    "torchft": torchft_jobs.DEFAULTS,
    f"torchft, timeouts {torchft_jobs.TUNED_S:g} s": torchft_jobs.TUNED,
}
"""Whose figures are in them."""


class Scenario(NamedTuple):
    """One row: what happens, in words, and the name of its figures."""

    words: str
    what: str


STATE = f"{STATE_MB:.0f} MB"
SHORT = f"`--silence-timeout {SILENCE_SHORT_S:g}`"
SCENARIOS = (
    Scenario("a node is killed; the script imports only torch", KINDS["node"].what),
    Scenario("the same, while all nodes are in a step", KINDS["node_in_step"].what),
    Scenario("the same, one of two nodes", KINDS["node_of_two"].what),
    Scenario("the same, the node of rank 0", KINDS["proposer"].what),
    Scenario("only the agent is killed", KINDS["agent"].what),
    Scenario("only a worker is killed", KINDS["worker"].what),
    Scenario(f"a node is killed; our library, {STATE} of state", f"{KINDS['state'].what} ({STATE})"),
    Scenario("a node is killed; the `digits` example", KINDS["script_digits"].what),
    Scenario("a node is killed; Hugging Face's Trainer", KINDS["script_hf"].what),
    Scenario("a node is killed; Lightning's Trainer", KINDS["script_lightning"].what),
    Scenario("a node freezes", KINDS["stopped"].what),
    Scenario(f"the same, {SHORT}", f"{KINDS['stopped'].what}, --silence-timeout {SILENCE_SHORT_S:g}"),
    Scenario("a host loses its network", KINDS["cut"].what),
    Scenario(f"the same, {SHORT}", f"{KINDS['cut'].what}, --silence-timeout {SILENCE_SHORT_S:g}"),
    Scenario("the leader's node freezes", KINDS["stopped_leader"].what),
    Scenario("the leader's host loses its network", KINDS["cut_leader"].what),
    Scenario("a node joins (scale up), step to step", KINDS["newcomer"].what),
    Scenario("`elastic-ctl scale` removes a node, step to step", KINDS["scale_down"].what),
    Scenario("a node drains (planned stop), step to step", KINDS["drain"].what),
)


SUMMARY = (
    Scenario("a node is killed; script without a checkpoint, imports only torch", KINDS["node"].what),
    Scenario(f"a node is killed; training library, {STATE} of state", f"{KINDS['state'].what} ({STATE})"),
    Scenario("a node is killed; Hugging Face Trainer", KINDS["script_hf"].what),
    Scenario("a node is killed; Lightning", KINDS["script_lightning"].what),
    Scenario("a host loses its network", KINDS["cut"].what),
    Scenario("a node joins; training library", KINDS["newcomer"].what),
    Scenario("a node drains; training library", KINDS["drain"].what),
)
"""The rows of the short table in README.md."""
SUMMARY_COLUMNS = ("elastic-launch", "torchrun, tuned", "torchrun")


def cell(figure: Figure | None) -> str:
    """A figure for people: median, spread and number of rounds."""
    if figure is None:
        return ""
    count = len(figure.rounds)
    spread = f"{min(figure.rounds):.3g}–{max(figure.rounds):.3g}; {count}"
    return f"{figure.value:.3g} s ({spread})"


def in_order(measured: Iterable[Figure]) -> list[Figure]:
    """The figures of the table, row by row."""
    known = {(one.what, one.who): one for one in measured}
    names = [(scenario.what, who) for scenario in SCENARIOS for who in COLUMNS.values()]
    return [known[name] for name in names if name in known]


def summary(measured: Iterable[Figure]) -> str:
    """The short table: medians of few scenarios; a dash for what was not measured."""
    known = {(one.what, one.who): one for one in measured}
    rows = [["scenario", *SUMMARY_COLUMNS], ["---"] * (1 + len(SUMMARY_COLUMNS))]
    for scenario in SUMMARY:
        found = [known.get((scenario.what, COLUMNS[column])) for column in SUMMARY_COLUMNS]
        rows.append([scenario.words, *(f"{figure.value:.3g} s" if figure else "–" for figure in found)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def table(measured: Iterable[Figure]) -> str:
    """All lines, of the figures of docs/bench/recovery.json."""
    known = {(one.what, one.who): one for one in measured}
    rows = [["scenario", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for scenario in SCENARIOS:
        cells = [cell(known.get((scenario.what, who))) for who in COLUMNS.values()]
        if any(cells):
            rows.append([scenario.words, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
