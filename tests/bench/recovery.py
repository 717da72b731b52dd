"""Seconds from the loss of a node to the survivors' first step: ours against torchrun's, in one run.

    python -m tests.bench.recovery [--kinds node,agent,...] [--rounds 7] [--peer_rounds 3] [--only ours|peer]

Three nodes (`--nodes`) on this machine, one worker each, gloo. Steps pause 10 ms, so a figure has at most that of them
in it.

    node      SIGKILL of one node (agent and all below it): ours, torchrun tuned, torchrun by default
    state     the same with 100 MB of state, restored from the memory tier (--state_mb)
    agent     SIGKILL of one agent alone
    proposer  SIGKILL of rank 0's node
    worker    SIGKILL of one worker: its node comes back with it
    drain     SIGTERM to one agent, the script uses the library: from the last step before to the first step after
    newcomer  a third node joins two, the same way
    silent    two kinds: `stopped` is SIGSTOP of one node, agent and all below it; `cut` pulls the cable of a node's
              host, where each node has a host of its own (network namespaces: needs root). Ours by default, with
              --silence_timeout 0.3, and with the lease alone (--silence_timeout 0, of 2 and 5 s), and torchft
    silent_leader  the same of the leader's node: `stopped_leader` and `cut_leader`
    scripts   SIGKILL of one node for real scripts, each with default flags, ours and torchrun tuned: `script_plain`
              imports only torch, `script_library` has 100 MB in memory, `script_digits` is elastic.examples.digits,
              `script_hf` has Hugging Face's Trainer, `script_lightning` Lightning's. The last two need `make scripts`,
              and .venv-scripts/bin/python to run this

Every round is a new job. All of ours run with the default lease but the lease alone. The figures go to
docs/bench/recovery.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from elastic.core.agent.links.silence import BEATS_MIN, HEARTBEAT_S
from tests.bench import jobs, phases, results, torchft_jobs
from tests.bench.jobs import Contender
from tests.bench.losses import Kind, Round, one_round
from tests.bench.nodes import Node, end_in_order
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


def kill_node(node: Node, _: int) -> float:
    """SIGKILL of an agent and all below it."""
    return node.kill()


def kill_worker(_: Node, pid: int) -> float:
    """SIGKILL of a worker alone."""
    at_s = time.time()
    psutil.Process(pid).kill()
    return at_s


KINDS = {
    kind.name: kind
    for kind in (
        Kind("node", "SIGKILL of a node", kill_node),
        Kind("state", "SIGKILL of a node, state from memory", kill_node),
        Kind("agent", "SIGKILL of an agent", lambda node, _: node.kill_agent()),
        Kind("proposer", "SIGKILL of the proposer's node", kill_node, proposer=True),
        Kind("worker", "SIGKILL of a worker", kill_worker, world=NODES),
        Kind("drain", "drain, step to step", lambda node, _: node.drain(), planned=True),
        Kind(
            "newcomer",
            "newcomer, step to step",
            lambda node, _: time.time(),
            world=3,
            nodes=2,
            planned=True,
            newcomer=True,
        ),
        Kind("stopped", "silent node", lambda node, _: node.freeze(), trains_s=HEARD_S),
        Kind("cut", "host cut off", lambda node, _: node.cut(), trains_s=HEARD_S, apart=True),
        Kind("stopped_leader", "silent leader", lambda node, _: node.freeze(), proposer=True, trains_s=HEARD_S),
        Kind(
            "cut_leader",
            "leader's host cut off",
            lambda node, _: node.cut(),
            proposer=True,
            trains_s=HEARD_S,
            apart=True,
        ),
    )
}
SCRIPTS = (
    Kind("script_plain", "SIGKILL of a node, a script with torch alone", kill_node, goal_s=GOAL_S),
    Kind(
        "script_library",
        f"SIGKILL of a node, the library and {STATE_MB:.0f} MB",
        kill_node,
        script=partial(jobs.with_state, size_mb=STATE_MB, every=SCRIPT_EVERY, memory_every=1),
        goal_s=GOAL_S,
    ),
    Kind("script_digits", "SIGKILL of a node, digits", kill_node, script=jobs.digits, goal_s=DIGITS_GOAL_S),
    Kind(
        "script_hf",
        "SIGKILL of a node, Hugging Face's Trainer",
        kill_node,
        script=jobs.hf_trainer,
        needs="transformers",
        goal_s=HF_GOAL_S,
    ),
    Kind(
        "script_lightning",
        "SIGKILL of a node, Lightning's Trainer",
        kill_node,
        script=jobs.lightning,
        needs="lightning",
        goal_s=LIGHTNING_GOAL_S,
    ),
)
KINDS |= {kind.name: kind for kind in SCRIPTS}
SILENT = {"silent": ("stopped", "cut"), "silent_leader": ("stopped_leader", "cut_leader")}
GROUPS = {**SILENT, "scripts": tuple(kind.name for kind in SCRIPTS)}
"""What these names of --kinds stand for."""


def _asked_for_by(kind: Kind) -> str:
    """The name by which --kinds asks for it."""
    return next((name for name, kinds in GROUPS.items() if kind.name in kinds), kind.name)


class Bench:
    """The rounds that were asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.figures: list[results.Figure] = []

    def run(self, kind: Kind) -> None:
        """Measure one kind, ours first."""
        if kind.apart and (reason := hosts.missing()):
            print(f"\n{kind.name}: skipped, {reason}", flush=True)
            return
        if kind.needs and importlib.util.find_spec(kind.needs) is None:
            print(f"\n{kind.name}: skipped, {kind.needs} is not installed (make scripts)", flush=True)
            return
        if self.args.only != "peer":
            for figure in self._ours(kind):
                self._keep(figure)
        if self.args.only != "ours" and kind.name == "node":
            for name, contender in jobs.peers(self.args.nodes).items():
                rounds = self.measure(kind, contender, self.args.peer_rounds)
                self._keep(self._figure(kind.what, name, kind, contender, rounds, None))
            self._compare(kind)
        if self.args.only != "ours" and kind.name in GROUPS["scripts"]:
            command = jobs.torchrun(f"1:{self.args.nodes}", *jobs.TUNING, script=kind.script)
            tuned = Contender("torchrun, tuned", jobs.c10d_store, command, jobs.PEER_ENVIRON)
            rounds = self.measure(kind, tuned, self.args.peer_rounds)
            self._keep(self._figure(kind.what, tuned.name, kind, tuned, rounds, None))
        if self.args.only != "ours" and kind.name in SILENT["silent"]:
            self._torchft(kind)

    def _ours(self, kind: Kind) -> list[results.Figure]:
        if any(kind.name in names for names in SILENT.values()):
            return self._silent(kind)
        contender = Contender("elastic-launch", jobs.etcd_store, self._command(kind))
        rounds = self.measure(kind, contender, self.args.rounds)
        what = f"{kind.what} ({self.args.state_mb:.0f} MB)" if kind.name == "state" else kind.what
        goal = kind.goal_s or (None if kind.name == "state" else GOAL_S)
        found = [self._figure(what, results.OURS, kind, contender, rounds, goal)]
        if kind.planned:
            worst = max(abs(one.again) for one in rounds)
            command = f"python -m tests.bench.recovery --kinds {kind.name}"
            found.append(results.figure(f"{kind.name}: steps lost", results.OURS, "steps", [worst], command, goal=0.0))
        return found

    def _command(self, kind: Kind) -> jobs.Command:
        np = f"{kind.nodes}:{self.args.nodes}" if kind.newcomer else str(self.args.nodes)
        if not kind.planned and kind.name != "state":
            return jobs.ours(np, script=kind.script)
        size_mb = self.args.state_mb if kind.name == "state" else SMALL_MB
        return jobs.ours(np, script=partial(jobs.with_state, size_mb=size_mb, every=SCRIPT_EVERY, memory_every=1))

    def _silent(self, kind: Kind) -> list[results.Figure]:
        short = f", --silence_timeout {SILENCE_SHORT_S:g}"
        ways = [("", (), SILENT_GOAL_S), (short, jobs.silence_timeout(SILENCE_SHORT_S), SILENT_SHORT_GOAL_S)]
        for ttl_s in map(int, self.args.ttls.split(",")):
            flags = (*jobs.silence_timeout(0.0), "--lease_ttl", str(ttl_s))
            ways.append((f", --silence_timeout 0 --lease_ttl {ttl_s}", flags, ttl_s + LEASE_GOAL_S))
        found = []
        for settings, flags, goal_s in ways:
            contender = Contender("elastic-launch", jobs.etcd_store, jobs.ours(str(self.args.nodes), *flags))
            rounds = self.measure(kind, contender, self.args.rounds)
            found.append(self._figure(f"{kind.what}{settings}", results.OURS, kind, contender, rounds, goal_s))
        return found

    def _torchft(self, kind: Kind) -> None:
        if reason := torchft_jobs.missing():
            print(f"\ntorchft: {reason}", flush=True)
            return
        for contender in torchft_jobs.contenders():
            rounds = self.measure(kind, contender, self.args.peer_rounds)
            self._keep(self._figure(kind.what, contender.name, kind, contender, rounds, None))

    def measure(self, kind: Kind, contender: Contender, count: int) -> list[Round]:
        """Run the rounds one after the other, and print each."""
        print(f"\n{kind.name}: {kind.what}. {contender.name}\n  {contender.shown()}", flush=True)
        rounds = []
        with contextlib.ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery-")))
            cluster = stack.enter_context(jobs.hosts()) if kind.apart else None
            new_host = cluster.host if cluster is not None else lambda: None
            for number in range(count):
                job, folder = f"{kind.name.replace('_', '-')}{number}", scratch / f"round{number}"
                with contender.store(cluster) as store:
                    rounds.append(one_round(kind, contender, store, job, folder, new_host))
                print(f"  round {number + 1}: {_words(kind, rounds[-1])}", flush=True)
        return rounds

    def _figure(
        self, what: str, who: str, kind: Kind, contender: Contender, rounds: list[Round], goal: float | None
    ) -> results.Figure:
        return results.figure(
            what,
            who,
            "s",
            [one.took_s for one in rounds],
            f"python -m tests.bench.recovery --kinds {_asked_for_by(kind)}",
            started=contender.shown(),
            goal=goal,
            phases=phases.medians([one.phases for one in rounds]),
        )

    def _keep(self, figure: results.Figure) -> None:
        self.figures.append(figure)
        results.write("recovery", [figure], self.args.results)

    def _compare(self, kind: Kind) -> None:
        """Ours beside each peer of this run."""
        mine = next((one for one in self.figures if (one.what, one.who) == (kind.what, results.OURS)), None)
        if mine is None:
            return
        for who, goal in (("torchrun, tuned", TUNED_GOAL), ("torchrun, defaults", DEFAULT_GOAL)):
            other = next(one for one in self.figures if (one.what, one.who) == (kind.what, who))
            command = f"python -m tests.bench.recovery --kinds {kind.name}"
            self._keep(results.ratio(f"{kind.what}, in parts", mine, other, goal, command))


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
    if one.restore_s is not None:
        text = f"{text}, restore {one.restore_s:.3f} s"
    return "; ".join([text, *(f"{name} {value:.0f} ms" for name, value in one.phases.items())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer_rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--only", choices=("ours", "peer"))
    parser.add_argument("--state_mb", type=float, default=STATE_MB)
    parser.add_argument("--ttls", default="2,5", help="of the kind silent")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    bench = Bench(parser.parse_args())
    end_in_order()
    bytecode.write()
    fewer = NODES - bench.args.nodes
    for kind in (KINDS[name] for named in bench.args.kinds.split(",") for name in GROUPS.get(named, (named,))):
        bench.run(replace(kind, world=kind.world - fewer, nodes=kind.nodes - fewer))
    return 0 if all(one.kept is not False for one in bench.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
