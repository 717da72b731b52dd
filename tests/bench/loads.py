"""Loads under which no healthy node may be evicted: a job on hosts of their own, and what it makes of the load.

    python -m tests.bench.loads --kind cores|agent_stopped|vm_pause|jitter|loss|long_pauses [--minutes 60]
                                [--silence-timeout S] [--baseline] [--nodes 3] [--seed 1] [--results FILE.json]

Each node has a network namespace with an address of its own on this machine (needs root); one worker trains a tiny
model, in steps of some 10 ms. etcd is real, on one more host. The load begins after the first steps:

    cores          the workers keep all cores busy: twice as many processes on every node as this machine has cores
    agent_stopped  every 10 s on average SIGSTOP of an agent alone, for 0.8 s
    vm_pause       every 10 s on average a node's machine is suspended for 0.5 s
    jitter         every packet of a node is late by 0 to 300 ms
    loss           a tenth of the packets of every node is lost
    long_pauses    every 60 s on average a node's machine is suspended for 1 to 3 s

Counted are suspicions, those that were cleared, evictions (all three from the metrics of the agents), generations after
the first one, and steps. `--baseline` is the same with --silence-timeout 0, after it. Several kinds can run at the same
time, each with hosts of its own; `cores` wants the machine for itself. The exit code is 1 if an agent ended, if a
healthy node was evicted (at all; with `loss` more often than the baseline restarted; with `long_pauses` a host twice),
if the metrics do not count the evictions that the agents print, or if the job made no step under the load. An agent
that runs without its metrics ends the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from tests.bench import jobs, steplog
from tests.bench.lossy_links import Impairment, impaired
from tests.bench.nodes import Node, end_in_order, ended, wait_until
from tests.bench.pauses import Machine
from tests.cluster import hosts
from tests.support import bytecode

START_LIMIT_S = 300.0
"""All cores may be busy, or all packets late."""
STEPS_BEFORE = 50
JOB = "loads"
METRICS_PORT = 9400
METRICS_TRIES = 5
"""A loaded agent may not answer at once."""
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
STATUS_LIMIT_S = 60.0
EVICTED = re.compile(r"\(host (\S+)\) has sent nothing .*: evicted")
COUNTERS = {
    "suspicions": "elastic_launch_suspicions_total",
    "cleared": "elastic_launch_suspicions_cleared_total",
    "evictions": "elastic_launch_evictions_total",
}


class Run(msgspec.Struct, kw_only=True):
    """What became of one job. `by` is what made the load, `injections` how often."""

    kind: str
    silence_timeout_s: float | None
    """None: the default."""
    minutes: float
    nodes: int
    by: str
    injections: int
    suspicions: int
    cleared: int
    evictions: int
    evictions_printed: int
    """What the agents print; if the metrics disagree, one of the two is wrong."""
    evictions_of_one_host: int
    """The most that one host had."""
    restarts: int
    steps: int
    longest_gap_s: float
    """Between two steps of rank 0, after the load began."""
    agents_ended: int

    def words(self) -> str:
        """One line for people."""
        silence = "default" if self.silence_timeout_s is None else f"{self.silence_timeout_s:g}"
        return (
            f"{self.kind}, --silence-timeout {silence}, {self.nodes} nodes, {self.minutes:g} min, {self.by}: "
            f"{self.injections} injections; {self.suspicions} suspicions, {self.cleared} cleared, "
            f"{self.evictions} evictions (printed: {self.evictions_printed}; of one host at most "
            f"{self.evictions_of_one_host}), {self.restarts} restarts; "
            f"{self.steps} steps, longest gap {self.longest_gap_s:.2f} s; {self.agents_ended} agents ended"
        )


class LoadedJob:
    """The job that bears the load."""

    def __init__(self, machines: list[Machine], nodes: list[Node], dice: Random) -> None:
        self.machines = machines
        self.nodes = nodes
        self._dice = dice

    def moment(self, every_s: float) -> float:
        """Seconds until something happens again that happens so often on average."""
        return self._dice.uniform(0.5, 1.5) * every_s

    def stop_agent(self) -> None:
        """SIGSTOP of an agent alone, for 0.8 s."""
        agent = self._dice.choice(self.nodes).process
        agent.send_signal(signal.SIGSTOP)
        time.sleep(0.8)
        agent.send_signal(signal.SIGCONT)

    def pause(self, least_s: float, most_s: float) -> None:
        """Suspend one machine."""
        self._dice.choice(self.machines).pause(self._dice.uniform(least_s, most_s))


@dataclass(frozen=True)
class Load:
    """One kind: processes that keep cores busy, what is done to packets, or what happens again and again.

    `by` is what makes the load, "" if the machine decides. `busy` is how many processes there are beside each worker.
    """

    by: str = ""
    busy: int = 0
    impairment: Impairment | None = None
    every_s: float = 0.0
    inject: Callable[[LoadedJob], None] | None = None


CORES = len(os.sched_getaffinity(0))
LOADS = {
    "cores": Load(f"{2 * CORES} busy processes on each node", busy=2 * CORES),
    "agent_stopped": Load("SIGSTOP", every_s=10.0, inject=LoadedJob.stop_agent),
    "vm_pause": Load(every_s=10.0, inject=lambda job: job.pause(0.5, 0.5)),
    "jitter": Load(impairment=Impairment(late_s=0.15, jitter_s=0.15)),
    "loss": Load(impairment=Impairment(loss=0.1)),
    "long_pauses": Load(every_s=60.0, inject=lambda job: job.pause(1.0, 3.0)),
}


def run(kind: str, silence_timeout_s: float | None, args: argparse.Namespace) -> Run:
    """One job, from its start to the counts."""
    load = LOADS[kind]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loads-")))
        cluster = stack.enter_context(jobs.hosts())
        machines = [stack.enter_context(_machine(cluster)) for _ in range(args.nodes)]
        silence = () if silence_timeout_s is None else jobs.silence_timeout(silence_timeout_s)
        flags = (*silence, "--metrics-port", str(METRICS_PORT), "--max-restarts", "1000000")
        of_job = jobs.ours(str(args.nodes), *flags, script=partial(jobs.plain, busy=load.busy))
        command = of_job(cluster.server, JOB, folder)
        nodes = [Node(one.command(command), folder / f"node{number}.out") for number, one in enumerate(machines)]
        stack.enter_context(ended(nodes))
        log = steplog.Reader(folder / "steps.log")
        wait_until(lambda: len(log.read()) >= STEPS_BEFORE * args.nodes, START_LIMIT_S, "the first steps", nodes)
        by, began_s, injections = load.by or machines[0].way, time.time(), 0
        if load.impairment is not None:
            by = stack.enter_context(impaired([one.host for one in machines], [cluster.first], load.impairment))
        job = LoadedJob(machines, nodes, Random(args.seed))
        while (left_s := began_s + 60 * args.minutes - time.time()) > 0:
            time.sleep(min(job.moment(load.every_s) if load.inject else left_s, left_s))
            if load.inject is not None:
                load.inject(job)
                injections += 1
        steps, longest_gap_s = steps_since(folder / "steps.log", began_s, time.time())
        pages = [_metrics(one.host, node) for one, node in zip(machines, nodes, strict=True)]
        counted = sum(map(counts, pages), Counter[str]())
        evicted = evicted_hosts([node.output.read_text() for node in nodes])
        return Run(
            kind=kind,
            silence_timeout_s=silence_timeout_s,
            minutes=args.minutes,
            nodes=args.nodes,
            by=by,
            injections=injections,
            suspicions=counted["suspicions"],
            cleared=counted["cleared"],
            evictions=counted["evictions"],
            evictions_printed=evicted.total(),
            evictions_of_one_host=max(evicted.values(), default=0),
            restarts=_generation(machines[0].host, cluster.server) - 1,
            steps=steps,
            longest_gap_s=longest_gap_s,
            agents_ended=sum(not node.alive() for node in nodes),
        )


@contextlib.contextmanager
def _machine(cluster: hosts.Cluster) -> Iterator[Machine]:
    machine = Machine(cluster.host())
    try:
        yield machine
    finally:
        machine.remove()


def steps_since(log: Path, began_s: float, ended_s: float) -> tuple[int, float]:
    """How many steps the job made between these times, and the longest time without one. The log may be large."""
    count, last_s, longest_s = 0, began_s, 0.0
    with log.open() as lines:
        for line in lines:
            if " rank=0 " in line and (at_s := float(line.split()[0])) > began_s:
                count, last_s, longest_s = count + 1, at_s, max(longest_s, at_s - last_s)
    return count, round(max(longest_s, ended_s - last_s), 3)


def counts(page: str) -> Counter[str]:
    """The counters of an agent's page of metrics that are wanted; an agent that has ended ("") counts nothing.

    Raises `LookupError` if the page has not all of them.
    """
    found = Counter[str]()
    for name, metric in COUNTERS.items() if page else ():
        match = re.search(rf"^{metric}(?:\{{[^}}]*\}})? (\S+)$", page, re.M)
        if match is None:
            raise LookupError(f"the metrics of an agent do not have {metric}")
        found[name] = int(float(match[1]))
    return found


def evicted_hosts(outputs: Sequence[str]) -> Counter[str]:
    """How often the agents say of each host that it was evicted."""
    return Counter(host for text in outputs for host in EVICTED.findall(text))


def _metrics(host: hosts.Host, node: Node) -> str:
    """The page of metrics of the agent there, "" if that agent has ended.

    Raises `RuntimeError` if the agent runs and its page cannot be read: without it nobody knows what it counted.
    """
    command = host.command([sys.executable, "-c", FETCH, f"http://127.0.0.1:{METRICS_PORT}/metrics"])
    for _ in range(METRICS_TRIES):
        answered = subprocess.run(command, capture_output=True, text=True, check=False)
        if answered.returncode == 0:
            return answered.stdout
    if node.alive():
        why = "".join(answered.stderr.strip().splitlines()[-1:])
        raise RuntimeError(f"the agent at {host.address} runs, and its metrics cannot be read: {why}")
    return ""


def _generation(host: hosts.Host, server: str) -> int:
    """The number of the job's generation, from etcd."""
    words = (sys.executable, "-m", "launcher.ctl", "status", "--json", "--elastic-server", server, "--job-id", JOB)
    shown = subprocess.run(host.command(words), capture_output=True, text=True, check=True, timeout=STATUS_LIMIT_S)
    return int(json.loads(shown.stdout)["generation"])


def within(mine: Run, baseline: Run | None) -> bool:
    """Tell whether no healthy node was evicted, as far as the kind of load allows none.

    Figures in which the metrics and the agents' output disagree prove nothing, nor does a job that did not train.
    """
    if mine.evictions != mine.evictions_printed or not mine.steps:
        return False
    if mine.kind == "long_pauses":
        return mine.evictions_of_one_host <= 1
    if mine.kind == "loss" and baseline is not None:
        return mine.evictions <= baseline.restarts
    return mine.evictions == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=LOADS, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--silence-timeout", type=float)
    parser.add_argument("--baseline", action="store_true")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    if reason := hosts.missing():
        print(f"skipped: {reason}", flush=True)
        return 0
    end_in_order()
    bytecode.write()
    runs = []
    for silence_timeout_s in (args.silence_timeout, 0.0) if args.baseline else (args.silence_timeout,):
        runs.append(run(args.kind, silence_timeout_s, args))
        print(runs[-1].words(), flush=True)
        if args.results is not None:
            args.results.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1) + b"\n")
    kept = within(runs[0], runs[1] if args.baseline else None) and runs[0].agents_ended == 0
    print(f"{args.kind}: {'kept' if kept else 'BROKEN'}", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
