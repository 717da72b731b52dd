"""What a node costs whose workers write without end: the agent's memory, the disk, and how fast it goes.

    python -m tests.bench.output [--gb 2] [--kind lines|binary|endless] [--console file|stuck|closed]

One node, two workers: that of rank 0 is shown on the console, the other one is not. Each writes half of it: short
lines, random bytes, or one line without an end. The console is a file, a pipe that nobody reads, or one whose reader
is gone. The agent's memory is the highest that the kernel has seen (VmHWM). Whether the lease of 2 s was refreshed all
the while is seen in launcher.log, which says when it is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from elastic.store.embedded import EmbeddedEtcd
from tests.bench.nodes import ROOT

LOOK_S = 0.1
WRITER = """
import os, sys
kind, total = sys.argv[1], int(sys.argv[2])
line = b"step 1234 loss 0.1234 lr 0.001 and some words that a library says of each step of a training\\n"
piece = {"lines": line * 600, "binary": os.urandom(60_000), "endless": b"x" * 60_000}[kind]
while total > 0:
    total -= os.write(1, piece)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--kind", choices=["lines", "binary", "endless"], default="lines")
    parser.add_argument("--console", choices=["file", "stuck", "closed"], default="file")
    parser.add_argument("--log-max-bytes", default="200MB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="output-") as scratch, asyncio.Runner() as runner:
        etcd = EmbeddedEtcd()
        try:
            return measure(args, Path(scratch), runner.run(etcd.start()))
        finally:
            runner.run(etcd.stop())


def measure(args: argparse.Namespace, folder: Path, store: str) -> int:
    """Run it and print what it cost; the launcher's exit code."""
    script = folder / "writer.py"
    script.write_text(WRITER)
    command = [
        *(
            sys.executable,
            "-m",
            "launcher",
            "--elastic-server",
            store,
            "--job-id",
            "output",
            "--np",
            "1",
            "--no-preload",
        ),
        *("--nproc-per-node", "2", "--lease-ttl", "2", "--log-max-bytes", args.log_max_bytes, "--console", "rank0"),
        *(str(script), args.kind, str(int(args.gb * 1e9 / 2))),
    ]
    reader, writer = os.pipe()
    if args.console == "file":
        os.close(writer)
        writer = os.open(folder / "console", os.O_WRONLY | os.O_CREAT)
    if args.console == "closed":
        os.close(reader)
    began_s = time.monotonic()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    agent = subprocess.Popen(command, cwd=folder, stdout=writer, stdin=subprocess.DEVNULL, env=environ)
    os.close(writer)
    memory, disk = 0, 0
    process = psutil.Process(agent.pid)
    while agent.poll() is None:
        memory = max(memory, high_water(agent.pid))
        disk = max(disk, sum(one.stat().st_size for one in (folder / "log").glob("*") if one.exists()))
        cpu_s = cpu(process)
        time.sleep(LOOK_S)
    took_s = time.monotonic() - began_s
    lost = (folder / "log" / "launcher.log").read_text().count("lease is lost")
    print(
        f"{args.gb:g} GB of {args.kind}, console {args.console}: exit {agent.returncode} in {took_s:.1f} s; "
        f"agent's memory at most {memory / 1e6:.0f} MB, its CPU {cpu_s:.1f} s; "
        f"log directory at most {disk / 1e6:.0f} MB; leases lost: {lost}"
    )
    return int(agent.returncode)


def high_water(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def cpu(process: psutil.Process) -> float:
    """CPU seconds of a process itself; 0.0 once it is gone."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


if __name__ == "__main__":
    sys.exit(main())
