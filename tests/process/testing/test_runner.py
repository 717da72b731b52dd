"""`elastic.testing`: worlds of real processes that change as scheduled."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.channel import client, messages
from elastic.testing import End, Failure, NodeFailure, Planned, RunFailed, RunHung, World, reached, record, run
from tests.support.script_runs import completed, environment


def listen() -> client.ChannelClient:
    """What State does at its first commit: from now on a planned stop is heard."""
    end = client.channel_client(os.environ)
    assert end is not None
    assert end.send(messages.AcceptsPlannedStop())
    return end


def count(steps: int, starts: list[int]) -> dict[str, int]:
    """Training without torch: each world starts at its step; all leave with 143 when asked to stop."""
    end, rank = listen(), int(os.environ["RANK"])
    for step in range(starts[int(os.environ["ELASTIC_GENERATION"]) - 1] + 1, steps + 1):
        record([step, rank, int(os.environ["WORLD_SIZE"])])
        reached(step)
        if end.stop_asked():
            sys.exit(143)
    return {"rank": rank, "step": steps}


def wait_for_ever() -> None:
    threading.Event().wait()


def test_worlds_change_at_their_steps_and_the_last_one_returns_its_values() -> None:
    result = run(count, args=(8, [0, 2, 4, 6]), worlds=[3, 2, 1, 3], change_at=[2, 4, 6])
    assert [[step for step, rank, _ in world.replicas[0].records] for world in result.worlds] == [
        [1, 2], [3, 4], [5, 6], [7, 8],
    ]  # fmt: skip
    assert [world.replicas[0].records[0][2] for world in result.worlds] == [3, 2, 1, 3]
    assert [[replica.code for replica in world.replicas] for world in result.worlds] == [
        [143, 143, 143], [143, 143], [143], [0, 0, 0],
    ]  # fmt: skip
    assert result.values == [{"rank": rank, "step": 8} for rank in range(3)]


def test_a_lost_node_is_killed_and_the_others_keep_their_order() -> None:
    result = run(count, args=(6, [0, 3]), worlds=[World(3, NodeFailure(3, nodes=(0,))), World(3)])
    before, after = result.worlds
    assert before.replicas[0].code == -signal.SIGKILL
    assert after.nodes[:2] == before.nodes[1:]
    assert after.nodes[2] not in before.nodes
    assert result.values[0]["step"] == 6


def test_a_replica_that_fails_as_scheduled_is_told_with_its_error() -> None:
    worlds = [World(2, Failure(3, rank=1)), World(2, Failure(5, rank=0, by="kill")), World(1)]
    result = run(count, args=(7, [0, 3, 5]), worlds=worlds)
    first, second, _ = result.worlds
    assert first.replicas[1].code == 1
    assert "Injected: elastic.testing: the schedule makes this replica fail at 3" in first.replicas[1].raised
    assert second.replicas[0].code == -signal.SIGKILL
    assert result.values == [{"rank": 0, "step": 7}]


def report_steps() -> int:
    """A script that says its steps on the local channel, and nothing else."""
    end = listen()
    step = int(os.environ["ELASTIC_GENERATION"]) * 1000
    while not end.stop_asked() and step % 1000 < 999:
        step += 1
        end.send(messages.Progress(step, int(os.environ["WORLD_SIZE"]), {"loss": 1.0}))
        time.sleep(0.005)  # A step of training.
    if end.stop_asked():
        sys.exit(143)
    return step


def test_a_step_that_is_reported_on_the_local_channel_ends_a_world_once_all_listen() -> None:
    result = run(report_steps, worlds=[World(2, Planned(1005)), World(1, Planned(2005))])
    assert all(replica.code == 143 for world in result.worlds for replica in world.replicas)
    assert max(replica.step or 0 for replica in result.worlds[0].replicas) >= 1005


def fail_in_the_channel() -> None:
    end = listen()
    end.send(messages.Progress(1, 1, {}))
    wait_for_ever()


def test_a_replica_fails_at_a_step_that_is_reported_on_the_local_channel() -> None:
    result = run(fail_in_the_channel, worlds=[World(1, Failure(1))])
    assert result.worlds[0].replicas[0].raised.endswith("the schedule makes this replica fail here")


def deaf(steps: int) -> None:
    for step in range(1, steps + 1):
        reached(step)
    wait_for_ever()


def test_a_function_without_this_library_is_stopped_with_sigterm() -> None:
    result = run(deaf, args=(3,), worlds=[World(2, Planned(3))])
    assert [replica.code for replica in result.worlds[0].replicas] == [-signal.SIGTERM] * 2


def keep_in_memory() -> list[Any]:
    """Leaves a word in the node's memory, and says what it found."""
    end = listen()
    size, name = 4096, f"word.{os.environ['LOCAL_RANK']}"
    found = end.segment(name, 0)
    if isinstance(found, str):
        given = end.segment(name, size)
        assert not isinstance(given, str)
        os.pwrite(given[0], os.environ["ELASTIC_NODE_ID"].encode(), 0)
        word = ""
    else:
        word = os.pread(found[0], size, 0).rstrip(b"\0").decode()
    record(word)
    reached("there")
    return [os.environ["ELASTIC_NODE_ID"], word]


def test_memory_survives_the_workers_of_a_node_and_is_lost_with_the_node() -> None:
    worlds = [World(2, NodeFailure("there", nodes=(0,))), World(2, Failure("there")), World(2)]
    result = run(keep_in_memory, slots=2, worlds=worlds)
    survivor, newcomer = result.worlds[1].nodes
    assert [replica.records for replica in result.worlds[1].replicas] == [[survivor], [survivor], [""], [""]]
    assert result.values == [[survivor, survivor]] * 2 + [[newcomer, newcomer]] * 2


def place() -> dict[str, str]:
    from elastic.train.checkpoint import fence

    fence.check(Path(os.environ["ELASTIC_CHECKPOINT_DIR"]), os.environ["ELASTIC_FENCE"])
    end = listen()
    end.send(messages.CheckpointSaved(7, os.environ["ELASTIC_CHECKPOINT_DIR"]))
    end.send(messages.AgentLogLine("a line"))
    reached("saved")
    if end.stop_asked():
        sys.exit(143)
    return {name: text for name, text in os.environ.items() if name.startswith(("ELASTIC_", "RANK", "LOCAL_"))}


def test_replicas_have_the_environment_of_a_worker(tmp_path: Path) -> None:
    worlds = [World(2, Planned("saved")), World(2)]
    result = run(place, worlds=worlds, slots=1, checkpoint_dir=tmp_path, env={"ELASTIC_CHECK_NAN": "1"})
    first, second = result.values
    assert [first["RANK"], first["LOCAL_RANK"], first["LOCAL_WORLD_SIZE"]] == ["0", "0", "1"]
    assert second["RANK"] == "1"
    assert first["ELASTIC_GENERATION"] == "2"
    assert first["ELASTIC_CHECKPOINT_DIR"] == str(tmp_path)
    assert json.loads(first["ELASTIC_SAVED"])["step"] == 7
    assert first["ELASTIC_CHECK_NAN"] == "1"
    assert first["ELASTIC_NODE_ID"] != second["ELASTIC_NODE_ID"]
    assert result.worlds[1].saved == 7
    assert result.worlds[1].replicas[0].notes == ["a line"]


def folder() -> str:
    return os.environ["ELASTIC_CHECKPOINT_DIR"]


def test_nodes_can_have_folders_of_their_own(tmp_path: Path) -> None:
    assert run(folder, worlds=[2], checkpoint_dirs=tmp_path).values == [
        str(tmp_path / "node0"),
        str(tmp_path / "node1"),
    ]


def add_up() -> Any:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"total": total, "threads": torch.get_num_threads()}


def test_replicas_meet_in_a_process_group_and_return_tensors() -> None:
    for value in run(add_up, worlds=[3]).values:
        assert value["total"].tolist() == [6.0, 6.0]
        assert value["threads"] == 1


def one_raises() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        print("before the end")
        raise ValueError("there is no such file")
    dist.barrier()


def test_the_replica_that_raised_first_is_named_with_the_last_line_of_its_traceback() -> None:
    with pytest.raises(RunFailed) as raised:
        run(one_raises, worlds=[2])
    lines = str(raised.value).splitlines()
    assert lines[0] == "rank 1 of world 0 (node1-0001) raised ValueError: there is no such file"
    assert "--- rank 1 of world 0 (node1-0001), last lines of the output:" in lines
    assert "before the end" in lines


def test_a_run_that_hangs_ends_in_time_with_the_stacks_of_all_replicas() -> None:
    with pytest.raises(RunHung) as raised:
        run(wait_for_ever, worlds=[2], timeout_s=3)
    said = str(raised.value)
    assert said.startswith("world 0 is still running after 3 s: ranks 0, 1")
    assert said.count("in wait_for_ever") == 2


def only_one_comes() -> None:
    if os.environ["RANK"] == "0":
        reached(1)
    wait_for_ever()


def test_who_waits_for_whom_is_said_when_not_every_replica_reaches_a_place() -> None:
    with pytest.raises(RunHung, match=r"ranks 0 wait in reached\(1\) for ranks 1"):
        run(only_one_comes, worlds=[World(2, Planned(1))], timeout_s=3)


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (Planned(50), r"returned before the scheduled end of the world \(Planned at 50\)"),
        (Failure(), "returned before the scheduled end of the world \\(when a replica fails\\)"),
    ],
)
def test_a_world_that_is_over_before_its_end_is_an_error(until: Planned | Failure, said: str) -> None:
    with pytest.raises(RunFailed, match=said):
        run(count, args=(2, [0, 0]), worlds=[World(2, until), World(2, End())])


def returns_when_asked() -> None:
    end = listen()
    reached(1)
    assert end.stop_asked()


def test_a_function_that_returns_when_asked_to_stop_is_an_error() -> None:
    with pytest.raises(
        RunFailed, match=r"rank 0 .* returned, instead of exiting with code 143 in the planned stop at 1"
    ):
        run(returns_when_asked, worlds=[World(1, Planned(1)), World(1)])


def leave_with_three() -> None:
    sys.exit(3)


def test_an_exit_code_that_nobody_expects_is_an_error() -> None:
    with pytest.raises(RunFailed, match=r"rank 0 of world 0 .* exited with code 3"):
        run(leave_with_three, worlds=[1])


def returns_a_socket() -> object:
    return socket.socket


def test_a_value_that_cannot_come_back_safely_is_an_error() -> None:
    with pytest.raises(RunFailed, match=r"TypeError: the function returned .*; return tensors, numbers"):
        run(returns_a_socket, worlds=[1])


def test_a_function_within_a_function_is_refused_with_the_mend() -> None:
    def inner() -> None: ...

    with pytest.raises(ValueError, match="define it at the top level of its module"):
        run(inner, worlds=[1])


def leave_children(folder: str) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    (Path(folder) / f"pid.{os.environ['RANK']}").write_text(f"{os.getpid()} {child.pid}")
    listen().segment("left", 1 << 20)
    reached("there")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids(folder: Path) -> list[int]:
    return [int(word) for path in folder.glob("pid.*") for word in path.read_text().split()]


def test_nothing_runs_when_the_run_is_over(tmp_path: Path) -> None:
    # Other programs of this machine use /dev/shm, too; torch writes the pid into the name.
    before = set(os.listdir("/dev/shm"))
    run(leave_children, args=(str(tmp_path),), worlds=[World(2, NodeFailure("there"))])
    assert len(pids(tmp_path)) == 4
    assert not [pid for pid in pids(tmp_path) if alive(pid)]
    new = set(os.listdir("/dev/shm")) - before
    numbers = {int(number) for name in new for number in re.findall(r"\d+", name)}
    assert not numbers & set(pids(tmp_path))


OF_A_USER = """
import os, subprocess, sys, threading
from elastic.testing import run

def train(told):
    child = subprocess.Popen(["sleep", "1000"])
    with open(told, "w") as file:
        file.write(f"{os.getpid()} {child.pid} {os.getppid()}\\n")
    threading.Event().wait()

if __name__ == "__main__":
    run(train, args=(sys.argv[1],), worlds=[2])
"""


def await_end(pid: int) -> None:
    """Return once a process is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [])  # The test's own time limit is the limit.
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    ("send", "number"), [(os.kill, signal.SIGKILL), (os.kill, signal.SIGINT), (os.killpg, signal.SIGTERM)]
)
def test_nothing_is_left_of_a_run_whose_test_is_interrupted(
    tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    (tmp_path / "script.py").write_text(OF_A_USER)
    (tmp_path / "tmp").mkdir()
    os.mkfifo(tmp_path / "told")
    process = subprocess.Popen(
        [sys.executable, "script.py", str(tmp_path / "told")],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(Path(__file__).parents[3]), TMPDIR=str(tmp_path / "tmp")),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with open(os.open(tmp_path / "told", os.O_RDWR)) as told:
            lines = [told.readline().split() for _ in range(2)]
        send(process.pid, number)
        process.communicate()
        for pid in {int(word) for line in lines for word in line}:  # The process that forked them among them.
            await_end(pid)
        assert not list((tmp_path / "tmp").glob("elastic-*"))
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(240)
def test_the_test_file_of_the_guide_passes_as_a_user_runs_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    found = re.search(r"```python\n(.*?)```", (root / "docs" / "guides/test-elasticity.md").read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "test_train.py").write_text(found[1])
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_train.py"]
    assert completed(words, tmp_path, PYTHONPATH=str(root))[-1].startswith("2 passed")


OF_SPAWNED = """
import multiprocessing
from elastic.testing import run

def double(number):
    return 2 * number

def train():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(double, [21])

if __name__ == "__main__":
    print(run(train, worlds=[1]).values)
"""


def test_what_a_script_s_replica_spawns_finds_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(OF_SPAWNED)
    assert completed(["script.py"], tmp_path, PYTHONPATH=str(Path(__file__).parents[3])) == ["[[42]]"]
