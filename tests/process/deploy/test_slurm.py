"""deploy/slurm/elastic.sbatch with real agents; Slurm's commands are stubs that do what its own do with processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from elastic.store.embedded import guarded
from tests.support.etcd_servers import free_ports
from tests.support.kustomize import ROOT

SBATCH = ROOT / "deploy" / "slurm" / "elastic.sbatch"
LIMIT_S = 90.0
STUBS = {
    # One task on each machine, each in a process group of its own, as slurmstepd starts them.
    "srun": f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
assert os.environ["SRUN_CPUS_PER_TASK"] == os.environ["SLURM_CPUS_PER_TASK"]  # srun reads no other since 22.05.
tasks = []
for number, host in enumerate(os.environ["SLURM_JOB_NODELIST"].split(",")):
    environ = {{**os.environ, "SLURMD_NODENAME": host, "SLURM_PROCID": str(number)}}
    tasks.append(subprocess.Popen(words, env=environ, process_group=0))
with open("tasks", "w") as file:
    print(*(task.pid for task in tasks), file=file)
sys.exit(max(task.wait() % 256 for task in tasks))
""",
    "scontrol": """#!/bin/sh
case $1 in
  show) echo "$3" | tr , '\\n' ;;
  requeue) echo "$2" >>requeued ;;
esac
""",
    # To whom the signal comes is a matter of the cluster: see REACHES.
    "scancel": f"""#!{sys.executable}
import os, pathlib, signal, sys
import psutil
assert sys.argv[2:] == ["77.0"], sys.argv
number = signal.Signals["SIG" + sys.argv[1].removeprefix("--signal=")]
for task in map(int, pathlib.Path("tasks").read_text().split()):
    if os.environ["REACHES"] == "all":
        os.killpg(task, signal.SIGTERM)
    below = [] if os.environ["REACHES"] == "task" else psutil.Process(task).children(recursive=True)
    for pid in (task, *(process.pid for process in below)):
        os.kill(pid, number)
""",
    "elastic-launch": f"""#!/bin/sh
exec {sys.executable} -m launcher "$@"
""",
}
REACHES = ("task", "all")
"""`task`: the first process alone (proctrack/cgroup). `all`: whatever is below it, after SIGTERM of Slurm's own."""
TRAIN = """
import os, pathlib, signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("the worker has saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("run", os.environ["ELASTIC_JOB_ID"], os.environ["WORLD_SIZE"], sys.argv[1], flush=True)
end = pathlib.Path(sys.argv[2])
while not end.exists():
    time.sleep(0.05)
sys.exit(int(end.read_text()))
"""


class Batch:
    """The script, as Slurm starts it once."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process
        self.lines: list[str] = []

    async def says(self, *words: str) -> None:
        """Wait for a line with all of these."""
        assert self.process.stdout is not None
        while not any(all(word in line for word in words) for line in self.lines):
            line = await self.process.stdout.readline()
            assert line, f"ended without {words}: {self.lines}"
            self.lines.append(line.decode().rstrip())

    async def ends(self) -> int:
        """Its exit code, after the rest of its lines."""
        assert self.process.stdout is not None
        self.lines += (await self.process.stdout.read()).decode().splitlines()
        return await self.process.wait()

    def requeued(self) -> list[str]:
        path = self.folder / "requeued"
        return path.read_text().split() if path.exists() else []


@contextlib.asynccontextmanager
async def batch(
    folder: Path,
    restarts: int,
    port: int,
    *words: str,
    reaches: str = "task",
    stubs: Mapping[str, str] = MappingProxyType(STUBS),
) -> AsyncIterator[Batch]:
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in stubs.items():
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "train.py").write_text(TRAIN)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC_", "SLURM", "PADDLE_"))}
    of_slurm = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "127.0.0.1,127.0.0.2", "SLURM_CPUS_PER_TASK": "2"}
    environ = {
        **kept,
        **of_slurm,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "SLURM_RESTART_COUNT": str(restarts),
        "ELASTIC_NO_PRELOAD": "1",
        "ELASTIC_JOIN_WINDOW": "0.5",
        "ELASTIC_SERVE_PORT": str(port),
        "MIN_NODES": "2",
        "REACHES": reaches,
    }
    process = await asyncio.create_subprocess_exec(
        *guarded(["/bin/bash", str(SBATCH), *words]),
        cwd=folder,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Batch(folder, process)
    finally:
        for end in (process.kill, partial(_end_tasks, folder)):
            with contextlib.suppress(ProcessLookupError):
                end()
        await process.wait()


def _end_tasks(folder: Path) -> None:
    path = folder / "tasks"
    for task in path.read_text().split() if path.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(task), signal.SIGKILL)


@pytest.mark.parametrize("reaches", REACHES)
def test_a_job_whose_time_is_over_is_queued_again_and_goes_on_under_the_same_name(tmp_path: Path, reaches: str) -> None:
    async def story() -> None:
        async with asyncio.timeout(LIMIT_S):
            (port,) = free_ports(1)
            words = ("train.py", "--lr=0.1", "end")
            async with batch(tmp_path, 0, port, *words, reaches=reaches) as first:
                await first.says("run slurm-77 2 --lr=0.1")
                first.process.send_signal(signal.SIGTERM)  # As --signal=B:TERM@180 does, to this script alone.
                assert await first.ends() == 0
                assert first.requeued() == ["77"]
                for said in ("SIGHUP: leaving gracefully", "left; the job stays open"):
                    assert sum(said in line for line in first.lines) == 2, first.lines
                assert "the worker has saved" in first.lines  # Rank 0; the other is in its log.
                assert "is requeued: its time limit is near, or Slurm needs the machines" in first.lines[-1]

            (tmp_path / "end").write_text("0")
            async with batch(tmp_path, 1, port, *words) as second:
                await second.says("job slurm-77 on 2 machines, start 2")
                await second.says("run slurm-77 2 --lr=0.1")
                assert await second.ends() == 0
                assert second.lines[-1] == "job slurm-77 has completed"
                assert second.requeued() == ["77"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "elastic.sbatch: no script given; run sbatch elastic.sbatch train.py [its arguments]"),
        (("missing.py",), 2, "job slurm-77 ended with exit code 2: another start would not fix it"),
    ],
)
def test_what_another_start_would_not_mend_is_not_queued_again(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    async def story() -> None:
        async with asyncio.timeout(LIMIT_S):
            async with batch(tmp_path, 0, free_ports(1)[0], *words) as started:
                assert await started.ends() == code
                assert started.lines[-1] == said
                assert started.requeued() == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (0, 0, "job slurm-77 has completed"),
        (0, 137, "job slurm-77 has completed"),
        (0, 143, "job slurm-77 is requeued: the agents ended with: 0 143 "),
        (0, 4, "job slurm-77 is requeued: the agents ended with: 0 4 "),
        (0, 1, "job slurm-77 ended with exit code 1: another start would not fix it"),
        (3, 143, "job slurm-77 ended with exit code 3: another start would not fix it"),
    ],
)
def test_a_job_has_completed_only_if_no_agent_left_it_open(tmp_path: Path, first: int, second: int, said: str) -> None:
    async def story() -> None:
        async with asyncio.timeout(LIMIT_S):
            ends = f"#!/bin/sh\n[ $SLURM_PROCID = 0 ] && exit {first}\nexit {second}\n"
            async with batch(tmp_path, 0, 0, "train.py", stubs={**STUBS, "elastic-launch": ends}) as started:
                await started.ends()
                assert started.lines[-1] == said
                assert started.requeued() == (["77"] if "requeued" in said else [])

    asyncio.run(story())
