"""What an operator's terminal gets of documents in etcd, logs and stacks that a hostile node wrote."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pty
import re
import sys
import tty
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
import pytest
from msgspec.structs import replace

from elastic.core.failure_class import FailureClass
from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.core.model import (
    Cause,
    ChangeReason,
    DrainOrder,
    FinalStatus,
    Generation,
    GenerationMember,
    Go,
    JobSpec,
    MemberState,
    Np,
    OtherFailure,
    SavedCheckpoint,
    Verdict,
    WorkerExit,
)
from elastic.core.ps.model import Role
from elastic.core.view import Document, encode
from elastic.store.etcd import EtcdStore
from launcher.history.events import EventKind, HistoryEvent, remember
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.wire.inspect_messages import NodeSnapshot, StacksQuestion, StackText, WorkerSnapshot, WorkerState
from tests.scripts.link_peer import JOB
from tests.support.etcd_servers import Server
from tests.support.inspect_documents import snapshot
from tests.support.inspect_harness import NODE, Looked, looked
from tests.support.link_harness import SECRET

EVIL: Final = "\x1b]0;title\x07\x1b[2J\x9b2J\x90q\x9c\x1b[8m\x7f\x08\x05\x85evil"
OBEYED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*m|[0-2]?K)")
COMMANDS = (
    *("status", "status --json", "events", "events --json", "list", "list --json", "logs 3", "logs 9", "stacks 3"),
    *("report --out -", "drain nobody", "scale --np 1:2", "forget"),
)
"""`doctor` is not among them: in a job that runs it waits for all nodes to answer."""
CONCEALED: Final = "\x1b[8m"
ENDED: Final = "ended"

EXIT = WorkerExit(
    rank=3, code=1, words=EVIL, log=f"/{EVIL}", tail=(EVIL, f"{EVIL} 2"), failure=FailureClass.MACHINE, why=EVIL
)
CAUSE = Cause(
    g=1,
    host=EVIL,
    node=EVIL,
    exits=(EXIT,),
    ranks=(3, 5),
    world_size=4,
    others=(OtherFailure(5, EVIL, EVIL, EVIL),),
)
WORKER = WorkerSnapshot(
    role=Role.WORKER,
    index=3,
    local_rank=3,
    pid=1,
    g=1,
    state=WorkerState.PREPARING,
    detail=EVIL,
    step=3,
    metrics={"loss": 1.0, EVIL: 1.0},
    log=EVIL,
)
NOW: NodeSnapshot = replace(snapshot(0), state=EVIL, waits=EVIL, version=EVIL, host=EVIL, workers=(WORKER,))


def documents(agent: Looked) -> dict[str, Document]:
    """A job that runs and one that has ended, whose documents say evil wherever their schema has room for it."""
    keys, over = JobKeys(JOB), JobKeys(ENDED)
    ports = (8000, 8001, 8002, 8003)
    place, other = (
        GenerationMember(NODE, "127.0.0.1", (7000,), ports),
        GenerationMember(f"n-{EVIL}", "127.0.0.1", (7001,), ports),
    )
    generation = Generation(
        g=1, run=1, leader=EVIL, why=ChangeReason.FIRST, reason=EVIL, members=(place, other), slots=4
    )
    spec = JobSpec(np=Np(low=1, high=2, first=2), slots=4, versions={"torch": "2"})
    member = replace(
        agent.member(), slots=4, ports=ports, state=MemberState.DRAINING, drain_reason=EVIL, versions={"torch": "3"}
    )
    verdict = Verdict(status=FinalStatus.FAILED, reason=EVIL, run=1, g=1, at=1.0, cause=CAUSE)
    return {
        keys.incarnation: "one",
        keys.secret: SECRET,
        keys.spec: spec,
        keys.generation: generation,
        keys.go: Go(g=1, master="127.0.0.1:7000", budget=generation.budget, cause=CAUSE, note=EVIL),
        keys.member(NODE): member,
        keys.member(f"n-{EVIL}"): replace(member, link=1),
        keys.member("n-spare"): replace(member, link=0),
        keys.leave("n-spare"): DrainOrder(reason=EVIL),
        keys.saved: SavedCheckpoint(step=1, host=EVIL, folder=f"/{EVIL}", run=1, g=1),
        over.incarnation: "two",
        over.spec: spec,
        over.generation: generation,
        over.verdict: verdict,
    }


async def stacks(asked: StacksQuestion) -> StackText:
    """What the agent answers."""
    return StackText(f"{EVIL}\n{EVIL}\n", EVIL)


@contextlib.asynccontextmanager
async def hostile(etcd: Server) -> AsyncIterator[Looked]:
    store = EtcdStore([etcd.endpoint])
    async with looked() as agent:
        agent.window._snapshot = lambda: NOW
        agent.window._stacks = stacks
        agent.log.write(f"first\n{EVIL}\ré\n\x1b[31mred\x1b[0m\x1b]52;c;".encode())
        agent.log.write(f"cm0=\x07last{CONCEALED}\n".encode())
        try:
            for key, document in documents(agent).items():
                await store.txn([], [Put(key, encode(document))])
            for job_id in (JOB, ENDED):
                keys = JobKeys(job_id)
                for what in EventKind:
                    event = HistoryEvent(
                        at=1795168800.0,
                        node=EVIL,
                        what=what,
                        g=1,
                        text=EVIL,
                        reason=EVIL,
                        of=EVIL,
                        nodes=(EVIL,),
                        phases={EVIL: 1.0, "stop": 2.0},
                    )
                    await store.txn([], remember(keys, event, []))
                course = TrainingCurve(names=(EVIL,), points=(CurvePoint(1, 1.0, 1, 0.5, 1.0, (1.0,)),))
                await store.txn([], [Put(keys.curve, msgspec.json.encode(course))])
            yield agent
        finally:
            await store.close()


async def on_a_terminal(*command: str) -> str:
    """All that a command writes to the terminal on which it runs."""
    controller, terminal = pty.openpty()
    tty.setraw(terminal)
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    environ.pop("NO_COLOR", None)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=environ
    )
    os.close(terminal)
    said = asyncio.create_task(asyncio.to_thread(read_all, controller))
    await process.wait()
    return await said


def read_all(controller: int) -> str:
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has it open any more.
        while data := os.read(controller, 1 << 16):
            said += data
    os.close(controller)
    return said.decode()


async def in_a_pipe(*command: str) -> str:
    """All that a command writes into pipes."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return (out + err).decode()


@pytest.mark.parametrize("run", [in_a_pipe, on_a_terminal])
@pytest.mark.parametrize(
    ("job_id", "words"), [*itertools.product((JOB, ENDED), COMMANDS), (ENDED, "doctor"), (ENDED, "doctor --json")]
)
def test_no_command_passes_a_sequence_on_to_the_terminal(
    etcd: Server, words: str, job_id: str, run: Callable[..., Awaitable[str]]
) -> None:
    async def story() -> str:
        async with hostile(etcd):
            names = ["--elastic-server", etcd.endpoint, *(["--job-id", job_id] * (not words.startswith("list")))]
            return await run(sys.executable, "-m", "launcher.ctl", *words.split(), *names)

    said = asyncio.run(story())
    assert "Traceback" not in said
    assert said
    assert OBEYED.findall(COLOURS.sub("", said)) == []
    if words not in ("logs 3", "stacks 3"):  # Colours are what they keep, and they end with them.
        assert CONCEALED not in said


def log_of(etcd: Server, *flags: str) -> str:
    async def story() -> str:
        async with hostile(etcd):
            names = ("--elastic-server", etcd.endpoint, "--job-id", JOB)
            return await in_a_pipe(sys.executable, "-m", "launcher.ctl", "logs", "3", *flags, *names)

    return asyncio.run(story())


def test_a_log_keeps_its_text_colours_and_carriage_returns_and_colours_end_with_it(etcd: Server) -> None:
    text = f"first\n{CONCEALED}evil\ré\n\x1b[31mred\x1b[0mlast{CONCEALED}\n\x1b[0m"
    assert log_of(etcd).endswith(text)


def test_a_raw_log_is_as_the_worker_wrote_it(etcd: Server) -> None:
    assert f"{EVIL}\ré\n".encode() in log_of(etcd, "--raw").encode()


def test_raw_stacks_are_as_the_node_told_them(etcd: Server) -> None:
    async def story() -> str:
        async with hostile(etcd):
            names = ("--elastic-server", etcd.endpoint, "--job-id", JOB)
            return await in_a_pipe(sys.executable, "-m", "launcher.ctl", "stacks", "3", "--raw", *names)

    assert EVIL in asyncio.run(story())
