"""What an agent costs while training runs: memory (RSS, MB) and CPU (% of a core over 30 s).

    python tests/bench/agent_cost.py [--nodes 2] [--seconds 30]

The nursery and the workers below the agent are not counted as the agent; the nursery is shown beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.bench import recovery, steplog
from tests.bench.nodes import Node, ended, wait_until

RSS_MAX_MB = 80.0
CPU_MAX_PERCENT = 1.0
STEP_S = 0.2
"""Slow steps: what is measured is the agent, and the machine should have time for it."""


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used itself, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="agent-cost-") as scratch, recovery.etcd_store(Path(scratch)) as store:
        folder = Path(scratch)
        log = folder / "steps.log"
        command = recovery.ours(store, "cost", folder, nodes=args.nodes, step_s=STEP_S)
        nodes = [Node(command, folder / f"node{i}.out") for i in range(args.nodes)]
        with ended(nodes):
            wait_until(lambda: len(steplog.read(log)) > 10 * args.nodes, recovery.START_LIMIT_S, "steps", nodes)
            agents = [node.process for node in nodes]
            before = [cpu_s(agent) for agent in agents]
            started_s = time.monotonic()
            time.sleep(args.seconds)
            after = [cpu_s(agent) for agent in agents]
            elapsed_s = time.monotonic() - started_s
            within = True
            for number, agent in enumerate(agents):
                percent = 100 * (after[number] - before[number]) / elapsed_s
                rss_mb = agent.memory_info().rss / 1e6
                within &= rss_mb < RSS_MAX_MB and percent < CPU_MAX_PERCENT
                below = sum(child.memory_info().rss for child in agent.children()) / 1e6
                print(
                    f"agent {number}: {rss_mb:.1f} MB, {percent:.2f} % of a core over {elapsed_s:.0f} s "
                    f"(nursery: {below:.0f} MB)"
                )
        print(f"goal: below {RSS_MAX_MB:.0f} MB and below {CPU_MAX_PERCENT:.0f} %: {'kept' if within else 'BROKEN'}")
        return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
