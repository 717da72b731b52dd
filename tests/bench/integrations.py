"""Seconds from the loss of a node to the survivors' first step, with and without an integration, in one run.

    .venv-scripts/bin/python -m tests.bench.integrations [--frameworks hf,lightning,accelerate] [--rounds 5]

The same script of each framework, once as its users write it and once with `elastic.integrations`, which keeps each
step in the memory of the nodes. Default flags, three nodes, SIGKILL of one of them once every node has prepared what
the script imports; the two take turns. The figures go to docs/bench/integrations.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench import jobs, preparation, results
from tests.bench.jobs import Contender
from tests.bench.losses import Kind
from tests.bench.nodes import end_in_order
from tests.bench.recovery import Bench, Entry, kill_node
from tests.support import bytecode

NODES = 3
MORE_GOAL_S = 0.3
"""So much longer may it take with the integration."""
COMMAND = "python -m tests.bench.integrations --frameworks"


@dataclass(frozen=True)
class Framework:
    """A script of a framework. `script` is called with `elastic=True` for the one that uses the integration."""

    words: str
    package: str
    script: Callable[..., list[str]]


FRAMEWORKS = {
    "hf": Framework("Hugging Face's Trainer", "transformers", jobs.hf_trainer),
    "lightning": Framework("Lightning's Trainer", "lightning", jobs.lightning),
    "accelerate": Framework("Accelerate", "accelerate", jobs.accelerate),
}


def measure(bench: Bench, name: str) -> None:
    """Measure one framework, and compare."""
    framework = FRAMEWORKS[name]
    what = f"SIGKILL of a node, {framework.words}, with and without its integration"
    kind = Kind(f"integration_{name}", what, kill_node, needs=framework.package, after=preparation.DONE)
    entries = [
        Entry(
            what, Contender(who, jobs.etcd_store, jobs.ours(str(NODES), script=script), learns=True), bench.args.rounds
        )
        for who, script in (
            (results.OURS, framework.script),
            (results.INTEGRATION, partial(framework.script, elastic=True)),
        )
    ]
    medians = []
    for entry, rounds in zip(entries, bench.measure(kind, entries), strict=True):
        took_s = [one.took_s for one in rounds]
        figure = results.figure(
            what,
            entry.contender.name,
            "s",
            took_s,
            f"{COMMAND} {name}",
            environment=results.SCRIPTS_ENVIRONMENT,
            started=entry.contender.shown(),
        )
        medians.append(figure.value)
        bench.keep(figure, "integrations")
    more = results.figure(
        f"{what}: more with it",
        results.INTEGRATION,
        "s",
        [medians[1] - medians[0]],
        f"{COMMAND} {name}",
        environment=results.SCRIPTS_ENVIRONMENT,
        goal=MORE_GOAL_S,
    )
    bench.keep(more, "integrations")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    bench = Bench(parser.parse_args())
    end_in_order()
    bytecode.write()
    for name in bench.args.frameworks.split(","):
        measure(bench, name)
    return 0 if all(one.kept is not False for one in bench.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
