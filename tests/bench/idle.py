"""What a node costs while training runs undisturbed: the agent's memory and CPU, and its messages to etcd.

    python -m tests.bench.idle [--nodes 2] [--seconds 600] [--step_s 0.2] [--library]

The agent's memory is its RSS; the nursery and the workers below it are not the agent, and the nursery's own share (PSS:
what it shares with the workers that it forked is divided among them) is printed beside it, as is that of the processes
which write logs and a console that is a file. Messages are counted by etcd
itself, in calls and in streams, before and after; to scrape its counters is plain HTTP and not among them. `--library`
runs the script that reports its steps. All of it is measured twice, with heartbeats and with --silence-timeout 0. The
figures go to docs/bench/idle.json.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil

from tests.bench import jobs, results, steplog
from tests.bench.losses import START_LIMIT_S
from tests.bench.nodes import Node, ended, wait_until

RSS_GOAL_MB = 60.0
CPU_GOAL_PERCENT, CPU_LEASE_GOAL_PERCENT = 0.6, 0.5
"""With heartbeats, and with the lease alone."""
MESSAGES_GOAL_PER_S = 1.2
STEP_S = 0.2
"""Slow steps: what is measured is the agent, and the machine should have time for it."""
SETTLED_S = 5.0
"""After the first steps the agents have written what a start brings; then the window begins."""
COUNTER = r'^{}\{{[^}}]*grpc_method="(?P<method>[^"]+)"[^}}]*\}} (?P<count>\S+)$'
CPUCLOCK_SCHED = 2
RECEIVED = "grpc_server_msg_received_total"


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used itself, without its children.

    It is read from the process's clock: `/proc` counts ticks of 10 ms, of which an idle agent uses two in 5 s, or none.
    """
    return time.clock_gettime((~process.pid << 3) | CPUCLOCK_SCHED)  # As clock_getcpuclockid(3) makes it of a pid.


def pss_mb(process: psutil.Process) -> float:
    """A process's share of memory: what it shares with others is divided among them."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def counted(address: str, name: str = RECEIVED) -> dict[str, float]:
    """A counter of etcd's, by gRPC method; by default the messages that it has received. A plain call has one."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {found["method"]: float(found["count"]) for found in re.finditer(COUNTER.format(name), text, re.M)}


class Window:
    """The counters of some agents over a time."""

    def __init__(self, agents: list[psutil.Process], store: str) -> None:
        self._agents = agents
        self._store = store
        self._cpu = [cpu_s(agent) for agent in agents]
        self._messages = counted(store)
        self._began_s = time.monotonic()

    def cpu_percent(self) -> list[float]:
        """Of a core, for each agent."""
        seconds = time.monotonic() - self._began_s
        return [100 * (cpu_s(agent) - before) / seconds for agent, before in zip(self._agents, self._cpu, strict=True)]

    def rates(self) -> dict[str, float]:
        """Messages per second and node, by method."""
        seconds = (time.monotonic() - self._began_s) * len(self._agents)
        after = counted(self._store)
        rates = {name: (count - self._messages.get(name, 0)) / seconds for name, count in after.items()}
        return {name: rate for name, rate in rates.items() if rate > 0}


def measure(args: argparse.Namespace, *, heartbeats: bool) -> list[results.Figure]:
    """Start a job, wait until it runs, and look at it for a while."""
    script = partial(jobs.plain, step_s=args.step_s)
    if args.library:
        script = partial(jobs.with_state, size_mb=1.0, every=1_000_000, memory_every=1, step_s=args.step_s)
    flags = () if heartbeats else jobs.silence_timeout(0.0)
    command = jobs.ours(str(args.nodes), *flags, script=script)
    contender = jobs.Contender(results.OURS, jobs.etcd_store, command)
    print(f"{contender.shown()}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="idle-") as scratch, jobs.etcd_store() as store:
        folder = Path(scratch)
        log = steplog.Reader(folder / "steps.log")
        nodes = [Node(command(store, "idle", folder), folder / f"node{i}.out") for i in range(args.nodes)]
        with ended(nodes):
            wait_until(lambda: len(log.read()) > 10 * args.nodes, START_LIMIT_S, "steps", nodes)
            agents = [node.process for node in nodes]
            print("agents: " + " ".join(str(agent.pid) for agent in agents), flush=True)
            time.sleep(SETTLED_S)
            window = Window(agents, store)
            time.sleep(args.seconds)
            percents, rates = window.cpu_percent(), window.rates()
            rss_mb = [agent.memory_info().rss / 1e6 for agent in agents]
            children = [child for agent in agents for child in agent.children()]
            nurseries = [pss_mb(child) for child in children if "launcher.nursery.main" in " ".join(child.cmdline())]
            writers = [pss_mb(child) for child in children if "launcher.nursery.main" not in " ".join(child.cmdline())]
    print(", ".join(f"{name} {rate:.2f}/s" for name, rate in sorted(rates.items())), flush=True)
    rows = (
        ("agent's memory (RSS)", "MB", rss_mb, RSS_GOAL_MB),
        ("fork server's share of memory (PSS)", "MB", nurseries, None),
        ("share of memory (PSS) of a process that writes logs", "MB", writers, None),
        ("agent's CPU, of a core", "%", percents, CPU_GOAL_PERCENT if heartbeats else CPU_LEASE_GOAL_PERCENT),
        ("messages to etcd, each node", "/s", [sum(rates.values())], MESSAGES_GOAL_PER_S),
    )
    return figures(args, contender.shown(), rows, "" if heartbeats else ", --silence-timeout 0")


def figures(
    args: argparse.Namespace, started: str, rows: Sequence[tuple[str, str, list[float], float | None]], setting: str
) -> list[results.Figure]:
    """What is kept of it; the rounds are the nodes."""
    how = f"python -m tests.bench.idle --seconds {args.seconds:.0f}{' --library' if args.library else ''}"
    note = f"{', script with the library' if args.library else ''}{setting}"
    return [
        results.figure(f"{what}{note}", results.OURS, unit, rounds, how, started=started, goal=goal)
        for what, unit, rounds, goal in rows
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--step_s", type=float, default=STEP_S)
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    found = []
    for heartbeats in (True, False):
        measured = measure(args, heartbeats=heartbeats)
        results.write("idle", measured, args.results)
        found += measured
    return 0 if all(one.kept is not False for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
