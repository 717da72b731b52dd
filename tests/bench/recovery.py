"""Seconds from the loss of a node to the survivors' first step: ours against torchrun's, in one run.

    python -m tests.bench.recovery [--kinds node,agent,...] [--rounds 7] [--peer_rounds 5] [--only ours|peer]

Three nodes (`--nodes`) on this machine, one worker each, gloo. Steps pause 10 ms, so a figure has at most that of them
in it.

    node      SIGKILL of one node (agent and all below it): ours, torchrun tuned, torchrun by default, and torchft
    state     the same with 100 MB of state, restored from the memory tier (--state_mb); torchrun has no such tier
    script_digits, script_hf, script_lightning  the same for elastic.examples.digits, Hugging Face's Trainer, and
              Lightning's; against torchrun tuned. The last two need `make scripts`, and .venv-scripts/bin/python
    node_in_step  node, with the time of a step within it: SIGKILL finds the nodes in a step, and not between two.
              torchrun tuned, and torchft
    node_of_two  node, in a job of two nodes, against the same
    agent     SIGKILL of one agent alone
    proposer  SIGKILL of rank 0's node
    worker    SIGKILL of one worker: its node comes back with it
    drain     SIGTERM to one agent, the script uses the library: from the last step before to the first step after
    newcomer  a third node joins two, the same way
    scale_down  `elastic-ctl scale` takes one of three nodes out, the same way
    silent    two kinds: `stopped` is SIGSTOP of one node, agent and all below it; `cut` pulls the cable of a node's
              host, where each node has a host of its own (network namespaces: needs root). Ours by default, with
              --silence-timeout 0.3, and with the lease alone (--silence-timeout 0, of 2 and 5 s), and torchft
    silent_leader  the same of the leader's node: `stopped_leader` and `cut_leader`
    scripts   what users get: node, state, and the three kinds of real scripts

In the kinds of `scripts` ours also runs with --no-learn, and where the script uses a framework, with --no-learn and
--preload of that framework. With default flags the node is killed once every node has prepared what the script imports
(at most 60 s after the first step); how long that takes goes to docs/bench/learning.json.

Every round is a new job with an empty cache of its own, and the contenders of a kind take turns. All of ours run with
the default lease but the lease alone. The other figures go to docs/bench/recovery.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from elastic.core.agent.links.silence import BEATS_MIN, HEARTBEAT_S
from tests.bench import jobs, phases, preparation, results, torchft_jobs
from tests.bench.jobs import Contender
from tests.bench.losses import Kind, Round, Target, one_round
from tests.bench.nodes import end_in_order
from tests.cluster import hosts
from tests.support import bytecode

NODES = 3
GOAL_S = 0.5
DEFAULT_GOAL = 1 / 50
"""Ours takes at most this part of torchrun by default."""
TUNED_GOAL = 1 / 8
SILENT_GOAL_S, SILENT_SHORT_GOAL_S = 1.6, 0.7
"""With the default silence timeout, and with the short one."""
SILENCE_SHORT_S = 0.3
HEARD_S = 2 * BEATS_MIN * HEARTBEAT_S
"""Only a link that has carried `BEATS_MIN` heartbeats can be silent: for twice that time a world trains first."""
LEASE_GOAL_S = 1.5
"""After the lease's time."""
DIGITS_GOAL_S, HF_GOAL_S, LIGHTNING_GOAL_S = 0.35, 1.5, 0.6
STATE_MB = 100.0
SMALL_MB = 1.0
"""State of the scripts of planned changes."""
SCRIPT_EVERY = 1_000_000
"""Steps between checkpoints on disk: none comes due by itself. Memory is written at every step."""


def kill_node(target: Target) -> float:
    """SIGKILL of an agent and all below it."""
    return target.node.kill()


def kill_worker(target: Target) -> float:
    """SIGKILL of a worker alone."""
    at_s = time.time()
    psutil.Process(target.pid).kill()
    return at_s


def scale_down(target: Target) -> float:
    """Order one node less."""
    at_s = time.time()
    which = ("--elastic-server", target.store, "--job-id", target.job)
    words = (sys.executable, "-m", "launcher.ctl", "scale", "--np", f"1:{target.world}", *which)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return at_s


KINDS = {
    kind.name: kind
    for kind in (
        Kind("node", "SIGKILL of a node", kill_node, after=preparation.DONE),
        Kind("state", "SIGKILL of a node, state from memory", kill_node, after=preparation.DONE),
        Kind(
            "script_digits",
            "SIGKILL of a node, digits",
            kill_node,
            script=jobs.digits,
            goal_s=DIGITS_GOAL_S,
            after=preparation.DONE,
        ),
        Kind(
            "script_hf",
            "SIGKILL of a node, Hugging Face's Trainer",
            kill_node,
            script=jobs.hf_trainer,
            needs="transformers",
            goal_s=HF_GOAL_S,
            after=preparation.DONE,
        ),
        Kind(
            "script_lightning",
            "SIGKILL of a node, Lightning's Trainer",
            kill_node,
            script=jobs.lightning,
            needs="lightning",
            goal_s=LIGHTNING_GOAL_S,
            after=preparation.DONE,
        ),
        Kind("node_in_step", "SIGKILL of a node within a step", kill_node, script=jobs.in_step),
        Kind("node_of_two", "SIGKILL of one of two nodes", kill_node, world=1, nodes=2),
        Kind("agent", "SIGKILL of an agent", lambda target: target.node.kill_agent()),
        Kind("proposer", "SIGKILL of the leader's node", kill_node, proposer=True),
        Kind("worker", "SIGKILL of a worker", kill_worker, world=NODES),
        Kind("drain", "drain, step to step", lambda target: target.node.drain(), planned=True),
        Kind(
            "newcomer",
            "joining node, step to step",
            lambda _: time.time(),
            world=3,
            nodes=2,
            planned=True,
            newcomer=True,
        ),
        Kind("scale_down", "scale down, step to step", scale_down, planned=True),
        Kind("stopped", "silent node", lambda target: target.node.freeze(), trains_s=HEARD_S),
        Kind("cut", "host cut off", lambda target: target.node.cut(), trains_s=HEARD_S, apart=True),
        Kind("stopped_leader", "silent leader", lambda target: target.node.freeze(), proposer=True, trains_s=HEARD_S),
        Kind(
            "cut_leader",
            "leader's host cut off",
            lambda target: target.node.cut(),
            proposer=True,
            trains_s=HEARD_S,
            apart=True,
        ),
    )
}
SILENT = {"silent": ("stopped", "cut"), "silent_leader": ("stopped_leader", "cut_leader")}
GROUPS = {**SILENT, "scripts": ("node", "state", "script_digits", "script_hf", "script_lightning")}
"""What these names of --kinds stand for."""


@dataclass(frozen=True)
class Entry:
    """A contender of one kind: under which name its figure is kept, how many rounds it runs, and its goal."""

    what: str
    contender: Contender
    rounds: int
    goal: float | None = None


def command(kind: Kind) -> str:
    """What measures a kind again."""
    asked_for = next((name for name, kinds in SILENT.items() if kind.name in kinds), kind.name)
    return f"python -m tests.bench.recovery --kinds {asked_for}"


def prepared(what: str) -> str:
    """The name of the figure that says how long it took until every node had prepared what the script imports."""
    return f"{what}: from the first step until its imports are prepared"


class Bench:
    """The rounds that were asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.figures: list[results.Figure] = []

    def run(self, kind: Kind) -> None:
        """Measure one kind."""
        if kind.apart and (reason := hosts.missing()):
            print(f"\n{kind.name}: skipped, {reason}", flush=True)
            return
        if kind.needs and importlib.util.find_spec(kind.needs) is None:
            print(f"\n{kind.name}: skipped, {kind.needs} is not installed (make scripts)", flush=True)
            return
        entries = [*(self._ours(kind) if self.args.only != "peer" else ())]
        entries += [*(self._peers(kind) if self.args.only != "ours" else ())]
        for entry, rounds in zip(entries, self.measure(kind, entries), strict=True):
            self.keep(self._figure(kind, entry, [one.took_s for one in rounds], rounds))
            if kind.planned:
                worst = max(abs(one.again) for one in rounds)
                what = f"{kind.what.partition(',')[0]}: steps lost"
                lost = results.figure(what, entry.contender.name, "steps", [worst], command(kind), goal=0.0)
                self.keep(lost)
            if logged_s := [one.logged_s for one in rounds if one.logged_s is not None]:
                waited = replace(entry, what=prepared(entry.what), goal=preparation.LIMIT_S)
                self.keep(self._figure(kind, waited, logged_s), "learning")
        if kind.name == "node":
            self._compare(kind)

    def _ours(self, kind: Kind) -> list[Entry]:
        if any(kind.name in names for names in SILENT.values()):
            return self._silent(kind)
        ours = Contender(results.OURS, jobs.etcd_store, self._command(kind), learns=True)
        entries = [Entry(self._what(kind), ours, self.args.rounds, self._goal(kind))]
        if kind.after:
            without = Contender(results.NO_LEARN, jobs.etcd_store, self._command(kind, "--no-learn"))
            entries.append(Entry(self._what(kind), without, self.args.rounds))
        if kind.needs:  # What a user does who knows the flag.
            by_hand = self._command(kind, "--no-learn", "--preload", kind.needs)
            named = Contender(f"{results.NO_LEARN} --preload {kind.needs}", jobs.etcd_store, by_hand)
            entries.append(Entry(self._what(kind), named, self.args.rounds))
        return entries

    def _goal(self, kind: Kind) -> float | None:
        return kind.goal_s or (None if kind.name == "state" else GOAL_S)

    def _what(self, kind: Kind) -> str:
        return f"{kind.what} ({self.args.state_mb:.0f} MB)" if kind.name == "state" else kind.what

    def _script(self, kind: Kind) -> jobs.Script:
        if not kind.planned and kind.name != "state":
            return kind.script
        size_mb = self.args.state_mb if kind.name == "state" else SMALL_MB
        return partial(jobs.with_state, size_mb=size_mb, every=SCRIPT_EVERY, memory_every=1)

    def _command(self, kind: Kind, *flags: str) -> jobs.Command:
        np = f"{kind.nodes}:{kind.nodes + 1}" if kind.newcomer else str(kind.nodes)
        return jobs.ours(np, *flags, script=self._script(kind))

    def _silent(self, kind: Kind) -> list[Entry]:
        short = f", --silence-timeout {SILENCE_SHORT_S:g}"
        ways = [("", (), SILENT_GOAL_S), (short, jobs.silence_timeout(SILENCE_SHORT_S), SILENT_SHORT_GOAL_S)]
        for ttl_s in map(int, self.args.ttls.split(",")):
            flags = (*jobs.silence_timeout(0.0), "--lease-ttl", str(ttl_s))
            ways.append((f", --silence-timeout 0 --lease-ttl {ttl_s}", flags, ttl_s + LEASE_GOAL_S))
        return [
            Entry(
                f"{kind.what}{settings}",
                Contender(results.OURS, jobs.etcd_store, jobs.ours(str(kind.nodes), *flags)),
                self.args.rounds,
                goal_s,
            )
            for settings, flags, goal_s in ways
        ]

    def _peers(self, kind: Kind) -> list[Entry]:
        found: list[Contender] = []
        if kind.name == "node":
            found += jobs.peers(kind.nodes)
        elif kind.name in ("node_in_step", "node_of_two", *GROUPS["scripts"]):
            found.append(jobs.tuned(kind.nodes, self._script(kind)))
        if kind.name == "state":
            found.append(jobs.defaults(kind.nodes, self._script(kind)))
        if kind.name in ("node", "node_in_step", "node_of_two", *SILENT["silent"]):
            if reason := torchft_jobs.missing():
                print(f"\ntorchft: {reason}", flush=True)
            else:
                found += torchft_jobs.contenders(within_steps=kind.name not in ("node", "node_of_two"))
        return [Entry(self._what(kind), contender, self.args.peer_rounds) for contender in found]

    def measure(self, kind: Kind, entries: Sequence[Entry]) -> list[list[Round]]:
        """Run the rounds of each, one round of each in turn, and print them."""
        for entry in entries:
            print(f"\n{kind.name}: {entry.what}. {entry.contender.name}\n  {entry.contender.shown()}", flush=True)
        found: list[list[Round]] = [[] for _ in entries]
        with tempfile.TemporaryDirectory(prefix="recovery-") as scratch:
            for number in range(max((entry.rounds for entry in entries), default=0)):
                for place, entry in enumerate(entries):
                    if number < entry.rounds:
                        folder = Path(scratch) / f"round{number}-{place}"
                        found[place].append(self._one(kind, entry, number, folder))
        return found

    def _one(self, kind: Kind, entry: Entry, number: int, folder: Path) -> Round:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(jobs.hosts()) if kind.apart else None
            store = stack.enter_context(entry.contender.store(cluster))
            new_host = cluster.host if cluster is not None else lambda: None
            job = f"{kind.name.replace('_', '-')}{number}"
            found = one_round(kind, entry.contender, store, job, folder, new_host)
        print(f"  round {number + 1}, {entry.what}, {entry.contender.name}: {_words(kind, found)}", flush=True)
        return found

    def _figure(
        self, kind: Kind, entry: Entry, took_s: Sequence[float], rounds: Sequence[Round] = ()
    ) -> results.Figure:
        return results.figure(
            entry.what,
            entry.contender.name,
            "s",
            took_s,
            command(kind),
            environment=results.SCRIPTS_ENVIRONMENT if kind.needs else results.ENVIRONMENT,
            started=entry.contender.shown(),
            goal=entry.goal,
            phases=phases.medians([one.phases for one in rounds]),
        )

    def keep(self, figure: results.Figure, file: str = "recovery") -> None:
        """Print a figure, and write it to its file."""
        self.figures.append(figure)
        results.write(file, [figure], self.args.results)

    def _compare(self, kind: Kind) -> None:
        """Ours beside each peer of this run."""
        known = {one.who: one for one in self.figures if one.what == kind.what}
        for who, goal in ((jobs.TUNED, TUNED_GOAL), (jobs.DEFAULTS, DEFAULT_GOAL)):
            if results.OURS in known and who in known:
                ratio = results.ratio(f"{kind.what}, ratio", known[results.OURS], known[who], goal, command(kind))
                self.keep(ratio)


def _words(kind: Kind, one: Round) -> str:
    text = f"{one.took_s:.3f} s to a world of {one.world} (generation {one.generation})"
    if kind.planned or kind.name == "state":
        lost = (
            f"{one.again} steps again"
            if one.again > 0
            else f"{-one.again} STEPS SKIPPED"
            if one.again
            else "no step lost"
        )
        text = f"{text}, {lost}"
    if one.logged_s is not None:
        text = f"{text}, prepared {one.logged_s:.1f} s after the first step"
    if one.restore_s is not None:
        text = f"{text}, restore {one.restore_s:.3f} s"
    return "; ".join([text, *(f"{name} {value:.0f} ms" for name, value in one.phases.items())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer_rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--only", choices=("ours", "peer"))
    parser.add_argument("--state_mb", type=float, default=STATE_MB)
    parser.add_argument("--ttls", default="2,5", help="of the kind silent")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    bench = Bench(parser.parse_args())
    end_in_order()
    bytecode.write()
    fewer, complete = NODES - bench.args.nodes, True
    for kind in (KINDS[name] for named in bench.args.kinds.split(",") for name in GROUPS.get(named, (named,))):
        try:
            bench.run(replace(kind, world=kind.world - fewer, nodes=kind.nodes - fewer))
        except TimeoutError as error:
            print(f"{kind.name}: BROKEN, nothing of it is kept: {error}", flush=True)
            complete = False
    return 0 if complete and all(one.kept is not False for one in bench.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
