"""What etcd tells of a job while it runs, after it has ended, and when it is forgotten: `elastic-ctl` as a command."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from contextlib import aclosing
from pathlib import Path
from signal import SIGINT

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.store.etcd import EtcdStore
from launcher.ctl.cli import main
from launcher.history.job_report import JobReport
from launcher.job.history import read_report
from tests.support.awaited_events import LIMIT_S
from tests.support.ctl_commands import CTL, ctl, started
from tests.support.job_harness import Job, story, story_with_its_own_etcd
from tests.support.worker_messages import reports_steps


async def lines_until(stream: asyncio.StreamReader | None, word: str) -> list[str]:
    """Lines, up to the first that has a word in it."""
    assert stream is not None
    found = [""]
    while word not in found[-1]:
        line = await asyncio.wait_for(stream.readline(), LIMIT_S)
        assert line, f"it ended without {word!r}: {found}"
        found.append(line.decode().rstrip("\n"))
    return found[1:]


async def told(job: Job) -> tuple[JobReport, list[tuple[int, int]]]:
    """The story of a job, and generation and step of each point of its course."""
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    try:
        report, _, written = await read_report(store, keys, 0.0)
        return report, [(point.g, point.step) for point in written.points] if written is not None else []
    finally:
        await store.close()


async def has_a_course(job: Job) -> None:
    """Wait until the course of a job is in the store."""
    store = EtcdStore([job.etcd.endpoint])
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            aclosing(store.watch((KeyRange.key(JobKeys(job.job_id).curve),), 1)) as told,
        ):
            async for batch in told:
                if batch.changes:
                    return
    finally:
        await store.close()


@story
async def test_a_job_that_has_completed_still_tells_what_happened_until_it_is_forgotten(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2")
    world = await job.world(1, 2)
    await reports_steps(world[0], 1, 2)
    following = await started(job, "events", "--follow")
    await lines_until(following.stdout, "generation 1 start: ")
    following.terminate()
    await following.communicate()
    await has_a_course(job)
    await job.node_of(world[0]).killed()
    (worker,) = await job.world(2, 1)
    await reports_steps(worker, 2, 3)
    code, out, err = await ctl(job, "forget", "--yes")
    assert (code, out) == (1, "")
    assert f"1 registered node ({worker.node}), so nothing was deleted; stop it first" in err
    await worker.exits(0)
    assert await job.node_of(worker).exits() == 0

    code, out, err = await ctl(job, "status")
    assert (code, err) == (0, "")
    assert f"Job {job.job_id} completed " in out
    code, out, err = await ctl(job, "events", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert [one["what"] for one in events if one["what"] != "recovery"] == [
        *("generation", "go", "start", "generation", "go", "verdict")
    ]
    lost = next(one for one in events if one["what"] == "generation" and one["g"] == 2)
    assert (lost["why"], lost["nodes"], lost["world"]) == ("node lost", [worker.node], 1)
    assert (events[-1]["status"], events[-1]["g"]) == ("completed", 2)
    lines = {one["job_id"]: one for one in map(json.loads, (await ctl(job, "list", "--json"))[1].splitlines())}
    line = lines[job.job_id]
    assert (line["state"], line["nodes"], line["generation"]) == ("completed", 0, 2)

    found, points = await told(job)
    assert points[0] == (1, 1), "the node that was killed wrote it"
    assert [point for point in points if point[0] == 2] == [(2, 2), (2, 3)], "the other one has gone on"
    assert [one.nodes for one in found.generations] == [(world[0].node, world[1].node), (world[1].node,)]
    assert (found.totals.restarts, found.totals.step) == ({"node lost": 1}, 3)
    assert found.goodput is not None
    assert 0 < found.goodput < 1

    code, out, err = await ctl(job, "forget", "--yes")
    assert (code, err) == (0, "")
    assert f"Deleted the record of job {job.job_id}: " in out
    assert (await ctl(job, "status"))[0] == 1
    assert job.job_id not in (await ctl(job, "list"))[1]


@story_with_its_own_etcd
async def test_who_follows_sees_all_to_the_verdict_also_when_etcd_was_away(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "0")
    (worker,) = await job.world(1, 1)
    following = await started(job, "events", "--follow")
    left = await started(job, "events", "--follow")
    assert len(await lines_until(following.stdout, "generation 1 start signal: ")) == 2
    await lines_until(left.stdout, "generation 1 start signal: ")
    left.send_signal(SIGINT)
    left_err = (await asyncio.wait_for(left.communicate(), LIMIT_S))[1]
    assert (left.returncode, left_err) == (130, b"")

    await asyncio.to_thread(job.etcd.kill)
    await lines_until(following.stderr, "etcd does not answer (")
    await asyncio.to_thread(job.etcd.start)
    await lines_until(following.stderr, "elastic-ctl: etcd answers again")
    await reports_steps(worker, 1, 2, 3)
    assert " start: " in (await lines_until(following.stdout, "generation 1 start: "))[0]
    await worker.obeys("complain", "ValueError: no data")
    await worker.exits(3)
    assert await node.exits() == 1
    out, err = await asyncio.wait_for(following.communicate(), LIMIT_S)
    assert (following.returncode, err) == (0, b"")
    rest = out.decode().splitlines()
    assert [line.split(": ")[0].split("  ")[-1] for line in rest[:-1]] == [
        "generation 2 formed",
        "generation 2 final status",
    ]
    assert rest[-1].startswith("goodput ")

    _, shown, _ = await ctl(job, "status")
    assert f"Job {job.job_id} failed " in shown
    assert "ValueError: no data" in shown
    code, shown, _ = await ctl(job, "events", "--follow", "--json")
    failure = json.loads(shown.splitlines()[-1])["failure"]
    assert (code, failure["rank"], failure["code"], failure["tail"]) == (0, 0, 3, ["ValueError: no data"])
    assert on_a_terminal(job, "events", "").count("█") > 50
    assert "was deleted" in on_a_terminal(job, "forget", "n\n")
    assert "Deleted the record of job " in on_a_terminal(job, "forget", "y\n")


def on_a_terminal(job: Job, command: str, typed: str) -> str:
    """What a command of a job that has ended writes to a terminal of its own, where this is typed."""
    controller, terminal = pty.openpty()
    argv = [*CTL, command, "--elastic-server", job.etcd.endpoint, "--job-id", job.job_id]
    environ = {**os.environ, "COLUMNS": "120", "TERM": "xterm-256color"}
    with subprocess.Popen(argv, env=environ, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        os.write(controller, typed.encode())
        found = b""
        try:
            while piece := os.read(controller, 1 << 16):
                found += piece
        except OSError:  # Nobody has the terminal any more.
            pass
        process.wait(LIMIT_S)
    os.close(controller)
    return found.decode()


COMPLETES = """
eval "$({ctl} completion bash)"
try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); "_shtab_${{1//-/_}}"; echo "${{COMPREPLY[@]}}"; }}
try elastic-ctl ev
try elastic-ctl events --f
try elastic-ctl completion z
try elastic-launch --nproc
try elastic-launch --np 2 tra
complete -p elastic-ctl elastic-launch | wc -l
"""


def test_bash_completes_subcommands_flags_and_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    ran = subprocess.run(
        ["bash", "--norc", "-c", COMPLETES.format(ctl=" ".join(CTL))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert ran.stderr == ""
    assert ran.stdout.split("\n") == ["events", "--follow", "zsh", "--nproc-per-node", "train.py", "2", ""]


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("list",), "--elastic-server HOST:PORT, or set ELASTIC_ETCD"),
        (("list", "--elastic-server", "h"), "h:2379"),
        (("list", "--elastic-server", "h:2379", "--job-id", "j"), "--job-id"),
        (("forget", "--elastic-server", "h:2379"), "--job-id"),
        (("events", "--job-id", "j", "--follow"), "--elastic-server"),
        (("completion",), "bash|zsh|fish"),
        (("completion", "tcsh"), "bash"),
        (("completion", "bash", "--job-id", "j"), "--job-id"),
        (("ui",), "--elastic-server HOST:PORT"),
        (("ui", "--elastic-server", "h:1", "--listen", "x"), "--listen"),
        (("ui", "--elastic-server", "h:1", "--listen", "192.0.2.1:80"), "--listen 192.0.2.1:80 cannot be used"),
        (("ui", "--elastic-server", "h:1", "--token-file", "/nowhere"), "--token-file /nowhere cannot be read"),
        (("ui", "--elastic-server", "h:1", "--token-file", "/dev/null"), "--token-file /dev/null needs a line of 16"),
        (("ui", "--elastic-server", "h:1", "--token-file", "x", "--allow-actions"), "--allow-actions"),
        (("report", "--elastic-server", "h:1"), "--job-id"),
        (("report", "--elastic-server", "h:1", "--job-id", "j", "--out", "/dev/null"), "/dev/null already exists"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_what_is_wrong_and_exit_2(
    argv: tuple[str, ...], names: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ELASTIC_ETCD", "ELASTIC_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert names in err


WRONG_TOKENS = ("100%zzabcdefghijklmnop", "a token with spaces", "a/token+of=base64", "tökèn-of-somebody")


@pytest.mark.parametrize("token", WRONG_TOKENS)
def test_a_token_that_would_not_stand_in_an_address_as_it_is_is_refused(
    token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    path.write_text(f"{token}\n")
    assert main(("ui", "--elastic-server", "127.0.0.1:1", "--listen", "192.0.2.1:80", "--token-file", str(path))) == 2
    assert "needs a line of 16 to 256 letters, digits and -._~" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_their_own(shell: str) -> None:
    ran = subprocess.run([*CTL, "completion", shell], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "elastic-launch" in ran.stdout
    assert "--nproc-per-node" in ran.stdout or "nproc_per_node" in ran.stdout
    assert "elastic-ctl completion" in ran.stdout.splitlines()[0]
