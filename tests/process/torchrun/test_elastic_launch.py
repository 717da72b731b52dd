"""Torch's `elastic_launch`, which runs its elastic agent for a program, on our backend: real processes, a real etcd.

The situations are those in which torch tests its launcher with its own backends:

    what is started         a python script, an executable script, a function; without a job ID
    one node or several     MIN:MAX with MIN nodes, and with MAX
    workers that fail       the error names the script; the job has failed, also for whoever comes later
    the agent fails         its own error comes out; the job stays open
    the end                 the job is closed for whoever comes later
    signals                 the job goes on without this node
    torchrun                everything from environment variables, and a program that is not python
"""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from tests.scripts.torch_agents import ENVIRONMENT, AgentNode, ends, environments, light, start, waiting
from tests.support.job_harness import Stage
from tests.support.torchrun_harness import Torchruns, works

SHELL = """#!/bin/sh
echo "works $RANK $WORLD_SIZE $TORCHELASTIC_RESTART_COUNT"
"""


def test_a_python_script_has_torchs_variables_and_the_launchers_in_a_job_that_nobody_has_named(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(
                entry=sys.executable,
                arguments=light(job, ENVIRONMENT),
                workers=4,
                role="trainer",
                launch=True,
                named=False,
            )
            process = await start(job, node, environ={"TORCH_OF_MY_OWN": "kept"})
            assert await process.exits() == 0
            assert ends(process)[0]["returned"] == {str(rank): None for rank in range(4)}
            workers = sorted(environments(process), key=lambda one: one["RANK"])
            assert [one["RANK"] for one in workers] == [one["LOCAL_RANK"] for one in workers] == ["0", "1", "2", "3"]
            assert {one["TORCH_OF_MY_OWN"] for one in workers} == {"kept"}
            assert {one["ROLE_NAME"] for one in workers} == {"trainer"}
            assert len({one["TORCHELASTIC_ERROR_FILE"] for one in workers}) == 4
            (made_up,) = {one["TORCHELASTIC_RUN_ID"] for one in workers}
            assert made_up.isdigit()
            await process.says("the job has completed: every worker of generation 1 ended with exit code 0")

    asyncio.run(story())


def test_an_executable_script_runs_on_one_of_two_nodes_when_no_other_comes(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            path = job.folder / "script.sh"
            path.write_text(SHELL)
            path.chmod(0o755)
            process = await start(job, AgentNode(entry=str(path), nnodes=(1, 2), workers=4, launch=True))
            assert await process.exits() == 0
            assert sorted(works(process)) == [(rank, 4, 0) for rank in range(4)]

    asyncio.run(story())


def test_what_a_function_returns_after_a_restart_comes_back_by_rank(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry="die_once", arguments=["1"], workers=2, restarts=1, method="fork", launch=True)
            process = await start(job, node)
            assert await process.exits() == 0
            assert ends(process)[0]["returned"] == {"0": 1, "1": 1}
            assert ends(process)[0]["events"] == ["SUCCEEDED"]

    asyncio.run(story())


def test_launchers_on_two_nodes_make_one_world(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(
                entry=sys.executable,
                arguments=light(job, ENVIRONMENT),
                nnodes=(1, 2),
                workers=2,
                launch=True,
                conf={"last_call_timeout": "15"},
            )
            processes = [await start(job, node), await start(job, node)]
            assert [await process.exits() for process in processes] == [0, 0]
            workers = [one for process in processes for one in environments(process)]
            assert sorted(one["RANK"] for one in workers) == ["0", "1", "2", "3"]
            assert {(one["WORLD_SIZE"], one["GROUP_WORLD_SIZE"]) for one in workers} == {("4", "2")}

    asyncio.run(story())


@pytest.mark.parametrize(("entry", "code"), [("/bin/true", 0), ("/bin/false", 1)])
def test_a_job_whose_workers_have_ended_is_closed_for_whoever_comes_later(stage: Stage, entry: str, code: int) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry=entry, nnodes=(1, 2), workers=2, launch=True)
            first = await start(job, node)
            assert await first.exits() == code
            ended = ends(first)[0]
            assert ended["events"] == ["SUCCEEDED"], "the agent has, whatever its workers did"
            if code:
                assert ended["error"][0] == "ChildFailedError"
                assert "false FAILED" in ended["text"]
            late = await start(job, node)
            assert await late.exits() == code
            if code:
                assert "RendezvousClosedError" in ends(late)[0]["error"]
                assert f"job {job.job_id} has ended (failed)" in ends(late)[0]["text"]
            else:
                assert ends(late)[0]["returned"] == {}, "torch's @record takes an exit with code 0 for a good end"
                await late.says(f"Job {job.job_id} completed")

    asyncio.run(story())


def test_the_error_of_an_agent_comes_out_and_leaves_the_job_open_for_the_next(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            broken = await start(job, AgentNode(entry="/no/such/program", launch=True))
            assert await broken.exits() == 1
            ended = ends(broken)[0]
            assert (ended["error"][0], ended["events"]) == ("FileNotFoundError", ["FAILED"])
            await broken.says("left; the job stays open")
            whole = await start(job, AgentNode(entry="/bin/true", launch=True))
            assert await whole.exits() == 0

    asyncio.run(story())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_a_signal_ends_leaves_the_job_to_the_others(stage: Stage, number: signal.Signals) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            node = AgentNode(entry=sys.executable, arguments=waiting(job), nnodes=(1, 2), launch=True)
            first = await start(job, node)
            await job.world(first)
            second = await start(job, node)
            await job.world(first, second)
            first.signal(number)
            assert await first.exits() == 1
            ended = ends(first)[0]
            assert (ended["error"][0], ended["events"]) == ("SignalException", ["FAILED"])
            await first.leaves_nothing()
            await job.world(second)
            job.end.write_text("0")
            assert await second.exits() == 0

    asyncio.run(story())


def test_torchrun_takes_everything_from_its_variables_and_starts_a_program_that_is_not_python(stage: Stage) -> None:
    async def story() -> None:
        async with Torchruns(stage.etcd, stage.folder).open() as job:
            path = job.folder / "script.sh"
            path.write_text(SHELL)
            path.chmod(0o755)
            given = {
                "NNODES": "1",
                "NPROC_PER_NODE": "3",
                "RDZV_BACKEND": "elastic-etcd",
                "RDZV_ENDPOINT": job.etcd.endpoint,
                "RDZV_ID": job.job_id,
                "NO_PYTHON": "1",
            }
            environ = {f"PET_{name}": text for name, text in given.items()}
            process = await job.run("-m", "torch.distributed.run", str(path), environ=environ)
            assert await process.exits() == 0
            assert sorted(works(process)) == [(rank, 3, 0) for rank in range(3)]
            await process.says("the job has completed: every worker of generation 1 ended with exit code 0")

    asyncio.run(story())
