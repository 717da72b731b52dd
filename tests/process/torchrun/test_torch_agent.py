"""Torch's own elastic agent, which other programs embed, on our backend: real processes on a real etcd.

The agents of a story run in processes of their own (`torch_agents`). The situations are those in which torch tests its
agent with its own backends:

    functions as entry points, and what they return       spawn, fork, forkserver; a tensor, a text, nothing
    the environment of a worker                            what torch promises, NCCL, watchdog, health check, master
    ranks                                                  roles on seven nodes, alike within a role and not
    a collective, RPC                                      one node, nodes alike and not; a prefix for log lines
    workers that fail                                      for good, once, by a signal; the error file; the root cause
    an agent that is lost                                  with rank 0 or another, with and without a replacement
    an agent that comes, and one that a signal ends        the world grows, and shrinks
    the exit barrier                                       met, not waited for, lost with rank 0, skipped after failures
    the end                                                the status of the job, and that no worker is left
    mistakes in the configuration                          one line each
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.torch_agents import (
    DRIFTING,
    ENVIRONMENT,
    RECORDED,
    UNEVEN,
    AgentNode,
    ends,
    environments,
    light,
    program,
    start,
    waiting,
)
from tests.support.job_harness import Stage
from tests.support.torchrun_harness import Torchruns, works

PROMISED = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *(f"TORCHELASTIC_{name}" for name in ("RESTART_COUNT", "MAX_RESTARTS", "RUN_ID", "USE_AGENT_STORE", "ERROR_FILE")),
}
"""What torch's agent promises to its workers."""

SWITCHES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_TIMER_FILE", "TORCHELASTIC_HEALTH_CHECK_PORT")


# --- entry points and what they return ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_what_functions_return_comes_back_by_rank_however_their_processes_are_started(
    stage: Stage, method: str
) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            process = await start(job, AgentNode(entry="answer", arguments=["hello"], workers=2, method=method))
            assert await process.exits() == 0
            assert ends(process)[0]["returned"] == {
                str(rank): {"rank": rank, "text": "hello", "nothing": None, "tensor": [2, 3]} for rank in range(2)
            }
            await process.says("the job has completed: every worker of generation 1 ended with exit code 0")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("given", "master", "expected"),
    [
        pytest.param({}, ("of-my-own", 42), ("1", None, None), id="a master of its own"),
        pytest.param(
            {SWITCHES[0]: "0", SWITCHES[1]: "timer", SWITCHES[2]: "12345", "TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
            None,
            ("0", "timer", "12345"),
            id="watchdog, health check and NCCL set",
        ),
    ],
)
def test_workers_have_the_variables_that_torch_promises_and_those_that_the_user_has_set(
    stage: Stage, given: dict[str, str], master: tuple[str, int] | None, expected: tuple[str | None, ...]
) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry=sys.executable, arguments=light(job, ENVIRONMENT), role="trainer", master=master)
            process = await start(job, node, environ=given)
            assert await process.exits() == 0
            (worker,) = environments(process)
            assert worker.keys() >= PROMISED
            assert (worker["TORCHELASTIC_RUN_ID"], worker["ROLE_NAME"]) == (job.job_id, "trainer")
            assert worker["TORCHELASTIC_USE_AGENT_STORE"] == "True"
            assert not master or (worker["MASTER_ADDR"], int(worker["MASTER_PORT"])) == master
            assert tuple(worker.get(name) for name in SWITCHES) == expected

    asyncio.run(story())


# --- ranks, collectives, RPC --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([("lead", 1), *[("trainer", 2)] * 4, ("reader", 3), ("reader", 3)], id="alike within a role"),
        pytest.param(
            [("lead", 5), *(("trainer", size) for size in (1, 2, 3, 4)), ("reader", 3), ("reader", 1)], id="all unlike"
        ),
    ],
)
def test_ranks_are_dense_in_the_world_and_in_each_role_and_in_one_piece_on_each_node(
    stage: Stage, nodes: list[tuple[str, int]]
) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            script, count = light(job, ENVIRONMENT), len(nodes)
            process = await start(
                job,
                *(
                    AgentNode(entry=sys.executable, arguments=script, nnodes=(count, count), workers=size, role=role)
                    for role, size in nodes
                ),
            )
            assert await process.exits() == 0
            workers = environments(process)
            world = sum(size for _, size in nodes)
            assert sorted(_number(one, "RANK") for one in workers) == list(range(world))
            assert {one["WORLD_SIZE"] for one in workers} == {str(world)}
            for role in {role for role, _ in nodes}:
                members = [one for one in workers if one["ROLE_NAME"] == role]
                size = sum(size for name, size in nodes if name == role)
                assert sorted(_number(one, "ROLE_RANK") for one in members) == list(range(size))
                assert {one["ROLE_WORLD_SIZE"] for one in members} == {str(size)}
            for group in range(count):
                local = sorted(
                    (one for one in workers if one["GROUP_RANK"] == str(group)), key=lambda one: _number(one, "RANK")
                )
                assert len(local) == int(local[0]["LOCAL_WORLD_SIZE"])
                for name in ("RANK", "ROLE_RANK"):
                    first = _number(local[0], name)
                    assert [_number(one, name) for one in local] == list(range(first, first + len(local)))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("sizes", "prefix"),
    [
        pytest.param((2,), "", id="one node"),
        pytest.param((2, 2), "[${role_name} ${local_rank} of ${rank}] ", id="nodes alike, with a prefix"),
        pytest.param((1, 2, 3), "", id="nodes unlike"),
    ],
)
def test_workers_of_all_nodes_meet_in_one_collective(stage: Stage, sizes: tuple[int, ...], prefix: str) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            count, world = len(sizes), sum(sizes)
            total = sum(range(world))
            process = await start(
                job,
                *(
                    AgentNode(
                        entry="summed", nnodes=(count, count), workers=size, method="forkserver", log_prefix=prefix
                    )
                    for size in sizes
                ),
            )
            assert await process.exits() == 0
            returned: dict[str, Any] = {}
            for ended in ends(process).values():
                returned |= ended["returned"]
            assert returned == {str(rank): total for rank in range(world)}
            lines = {line for line in process.shown if line.endswith(f"sum {total}")}
            assert not prefix or lines == {f"[default {rank % 2} of {rank}] sum {total}" for rank in range(world)}

    asyncio.run(story())


def test_a_worker_of_one_node_calls_that_of_another_by_rpc(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            process = await start(
                job,
                *(
                    AgentNode(entry="call", arguments=["hello"], nnodes=(2, 2), role=role, method="forkserver")
                    for role in ("caller", "callee")
                ),
            )
            assert await process.exits() == 0
            ended = ends(process)
            assert [list(ended[node]["returned"].values()) for node in range(2)] == [["HELLO"], [None]]

    asyncio.run(story())


# --- workers that fail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["function", "program"])
def test_the_first_error_of_a_worker_reaches_whoever_started_the_agent_and_its_error_file(
    stage: Stage, kind: str
) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            file = job.folder / "error.json"
            node = (
                AgentNode(entry="break_down", workers=2, method="fork")
                if kind == "function"
                else AgentNode(entry=sys.executable, arguments=program(job, RECORDED), workers=2)
            )
            process = await start(job, node, environ={"TORCHELASTIC_ERROR_FILE": str(file)})
            assert await process.exits() == 1
            ended = ends(process)[0]
            assert ended["error"][0] == "ChildFailedError"
            recorded = json.loads(file.read_text())["message"]
            first = recorded["message"].removeprefix("RuntimeError: rank ").removesuffix(" cannot go on")
            assert first in ("0", "1")
            code, message = ended["failures"][first]
            assert code == 1
            assert (message["message"], message["extraInfo"]) == (recorded["message"], recorded["extraInfo"])
            assert job_status(job) == "failed"

    asyncio.run(story())


def test_workers_start_again_until_no_restart_is_left_and_then_the_job_has_failed(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            (job.folder / "fail").touch()
            script = light(job, UNEVEN)
            process = await start(job, AgentNode(entry=sys.executable, arguments=script, workers=4, restarts=2))
            assert await process.exits() == 1
            ended = ends(process)[0]
            assert ended["error"][0] == "ChildFailedError"
            failed = {rank for rank, (code, _) in ended["failures"].items() if code == 7}
            assert failed
            assert failed <= {"1", "3"}  # Torch has stopped the others.
            assert {restarts for _, _, restarts in works(process)} == {0, 1, 2}
            assert job_status(job) == "failed"
            await process.leaves_nothing()

    asyncio.run(story())


def test_a_rank_that_a_signal_kills_once_starts_again_with_the_others(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry="die_once", arguments=["1"], workers=2, restarts=3, method="fork")
            process = await start(job, node)
            assert await process.exits() == 0
            assert ends(process)[0]["returned"] == {"0": 1, "1": 1}

    asyncio.run(story())


def test_an_agent_that_shuts_down_before_the_failure_is_raised_leaves_the_job_open(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            process = await start(job, AgentNode(entry="/bin/false", shutdown_first=True))
            assert await process.exits() == 1
            assert ends(process)[0]["error"][0] == "ChildFailedError"
            assert job_status(job) == "open"

    asyncio.run(story())


def test_the_worker_that_failed_first_is_named_and_not_one_that_torch_has_stopped_because_of_it(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            process = await start(job, AgentNode(entry=sys.executable, arguments=light(job, UNEVEN), workers=3))
            await job.told.until(lambda: len(works(process)) == 3, "all three work")
            (job.folder / "fail").touch()
            assert await process.exits() == 1
            assert re.search(r"Root cause: rank 1 on host 127\.0\.0\.1 .*: exit 7\.", shown_status(job))

    asyncio.run(story())


def test_operators_read_the_traceback_that_a_worker_has_recorded_line_by_line(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            process = await start(job, AgentNode(entry="break_down", method="fork"))
            assert await process.exits() == 1
            assert "    RuntimeError: rank 0 cannot go on" in shown_status(job).splitlines()

    asyncio.run(story())


# --- agents that are lost, come and leave -------------------------------------------------------------------------


def test_a_strict_job_waits_for_the_one_that_replaces_the_lost_agent_of_rank_0(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry=sys.executable, arguments=waiting(job), nnodes=(2, 2), restarts=2)
            agents = [await start(job, node), await start(job, node)]
            await job.told.until(lambda: all(works(agent) for agent in agents), "both work")
            lost, survivor = sorted(agents, key=lambda agent: works(agent)[-1][0])
            lost.signal(signal.SIGKILL)
            await survivor.says("was lost .its process is gone.")
            replacement = await start(job, node)
            await job.world(survivor, replacement)
            assert works(survivor)[-1] == (0, 2, 0), "the loss cost no restart"
            job.end.write_text("0")
            assert [await agent.exits() for agent in (survivor, replacement, lost)] == [0, 0, -signal.SIGKILL]

    asyncio.run(story())


@pytest.mark.parametrize("lost", [0, 1])
def test_an_elastic_job_shrinks_when_an_agent_is_lost_and_grows_when_another_comes(stage: Stage, lost: int) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry=sys.executable, arguments=waiting(job), nnodes=(1, 2), restarts=2)
            agents = [await start(job, node)]
            await job.world(agents[0])
            agents.append(await start(job, node))
            await job.world(*agents)
            agents[lost].signal(signal.SIGKILL)
            survivor = agents[1 - lost]
            await job.world(survivor)
            third = await start(job, node)
            await job.world(survivor, third)
            job.end.write_text("0")
            assert [await agent.exits() for agent in (survivor, third)] == [0, 0]
            assert {restarts for agent in (survivor, third) for _, _, restarts in works(agent)} == {0}

    asyncio.run(story())


def test_an_agent_that_a_signal_ends_takes_its_workers_along_and_leaves_the_job_to_the_others(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry=sys.executable, arguments=waiting(job), nnodes=(1, 2))
            agents = [await start(job, node)]
            await job.world(agents[0])
            agents.append(await start(job, node))
            await job.world(*agents)
            await agents[0].says("^supervises 2$")
            agents[0].signal(signal.SIGTERM)
            assert await agents[0].exits() == 1
            assert ends(agents[0])[0]["error"][0] == "SignalException"
            await agents[0].leaves_nothing()
            await job.world(agents[1])
            job.end.write_text("0")
            assert await agents[1].exits() == 0
            assert job_status(job) == "completed"

    asyncio.run(story())


# --- the exit barrier ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
def test_an_agent_whose_workers_ended_early_waits_at_the_exit_barrier_as_long_as_it_may(
    stage: Stage, waits: bool
) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            script = light(job, DRIFTING)
            process = await start(
                job,
                *(
                    AgentNode(
                        entry=sys.executable,
                        arguments=[*script, role],
                        nnodes=(2, 2),
                        role=role,
                        barrier_s=60 * waits,
                        conf={} if waits else {"close_timeout": "1"},
                    )
                    for role in ("early", "late")
                ),
                environ={"LOGLEVEL": "INFO"},
            )
            await process.says(r"\[early\] worker group successfully finished")
            if not waits:
                await process.shows('^ended {"node": 0')
            job.end.touch()
            assert await process.exits() == 0
            ended = ends(process)
            assert all("returned" in one for one in ended.values())
            order = [line[: len("ended {")] for line in process.shown if line.startswith(("late", "ended"))]
            assert order == (["late wo", "ended {", "ended {"] if waits else ["ended {", "late wo", "ended {"])
            assert job_status(job) == "completed"

    asyncio.run(story())


def test_an_agent_that_waits_at_the_exit_barrier_ends_well_although_rank_0_is_lost(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            first = await start(job, AgentNode(entry=sys.executable, arguments=waiting(job), nnodes=(1, 2)))
            await job.world(first)
            script = light(job, ENVIRONMENT)
            second = await start(
                job, AgentNode(entry=sys.executable, arguments=script, nnodes=(1, 2)), environ={"LOGLEVEL": "INFO"}
            )
            await second.says("worker group successfully finished")
            first.signal(signal.SIGKILL)
            assert await second.exits() == 0
            assert ends(second)[0]["returned"] == {"1": None}
            assert job_status(job) == "open"

    asyncio.run(story())


def test_no_agent_waits_at_the_exit_barrier_after_workers_of_each_have_failed(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            script = light(job, UNEVEN)
            node = AgentNode(entry=sys.executable, arguments=script, nnodes=(2, 2), workers=2, barrier_s=600)
            process = await start(job, node, node)
            await job.told.until(lambda: len(works(process)) == 4, "all four work")
            (job.folder / "fail").touch()
            assert await process.exits() == 1
            errors = [one["error"][0] for one in ends(process).values()]
            assert "ChildFailedError" in errors
            # Both have a failed worker; one of them may hear first that the job has failed.
            assert set(errors) <= {"ChildFailedError", "JobClosed"}
            assert job_status(job) == "failed"
            await process.leaves_nothing()

    asyncio.run(story())


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_a_mistake_in_the_configuration_is_one_line_and_not_an_attempt_to_join(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            wrong: list[dict[str, Any]] = [
                {"conf": {"no_such_option": "1"}},
                {"conf": {"join_timeout": "soon"}},
                {"job_id": "no/id"},
            ]
            process = await start(job, *(AgentNode(entry="/bin/true", **one) for one in wrong))
            assert await process.exits() == 1
            assert {tuple(one["error"][:1]) for one in ends(process).values()} == {("ScriptMistake",)}
            said = [line for line in process.lines if line.startswith("torchrun: error: --rdzv-")]
            assert len(said) == len(wrong)
            assert not any("Traceback" in line or "joined" in line for line in process.lines)

    asyncio.run(story())


def job_status(job: Torchruns) -> str:
    """How the job has ended, as `elastic-ctl` says: "completed" or "failed"; "open" if it has not."""
    words = shown_status(job).split(f"Job {job.job_id} ")
    return words[1].split()[0] if len(words) > 1 else "open"


def shown_status(job: Torchruns) -> str:
    """What `elastic-ctl status` shows of the job."""
    argv = ("-m", "launcher.ctl", "status", "--elastic-server", job.etcd.endpoint, "--job-id", job.job_id)
    return subprocess.run([sys.executable, *argv], cwd=Path.cwd(), capture_output=True, text=True, check=True).stdout


def _number(environ: dict[str, str], name: str) -> int:
    return int(environ[name])
