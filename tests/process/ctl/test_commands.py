"""`elastic-ctl` as a command, on a real etcd: what it shows, and one line for everything that goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.core.model import (
    ChangeReason,
    FinalStatus,
    Generation,
    GenerationMember,
    Go,
    JobSpec,
    Leader,
    Member,
    Np,
    Verdict,
)
from elastic.core.view import Document, encode
from elastic.errors import ConfigError
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdStore
from launcher import __version__
from launcher.ctl import cli
from launcher.history.events import EventKind, HistoryEvent, remember
from launcher.job import named_job
from launcher.system import stdout
from tests.support import stub_torch
from tests.support.etcd_servers import free_ports, one_server

LIMIT_S = 30.0
ROOT = Path(__file__).parents[3]

MEMBER = Member(host="10.0.0.1", slots=1, masters=(7000,), ports=(8000,))
SPEC = JobSpec(np=Np(low=1, high=2, first=2), slots=1)
GENERATION = Generation(
    g=1,
    run=1,
    leader="t",
    why=ChangeReason.FIRST,
    reason="2 of 2 nodes are here",
    members=(
        GenerationMember("10.0.0.1-aaaa", "10.0.0.1", (7000,), (8000,)),
        GenerationMember("10.0.0.2-bbbb", "10.0.0.2", (7,), (8,)),
    ),
    slots=1,
)

GO = Go(g=1, master="10.0.0.1:7000", budget=GENERATION.budget)

NODE = "10.0.0.1-aaaa"
EVENTS = (
    HistoryEvent(at=1795168800.0, node=NODE, what=EventKind.GENERATION, g=1, text="2 of 2 nodes are here"),
    HistoryEvent(
        at=1795168860.5,
        node=NODE,
        what=EventKind.RECOVERY,
        g=2,
        text="b was lost: back in 0.30 s: notice 4 ms",
        phases={"detect": 0.004},
    ),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd with job j1, which has lost a node, the same below another prefix, and job j10, which waits."""
    etcd = one_server(find_etcd(), tmp_path_factory.mktemp("etcd")).start()
    asyncio.run(fill(etcd.endpoint))
    yield etcd.endpoint
    etcd.kill()


async def fill(endpoint: str) -> None:
    store = EtcdStore([endpoint])
    for prefix in ("/elastic", "/team/x"):
        keys = JobKeys("j1", prefix)
        documents: dict[str, Document] = {
            keys.incarnation: "one",
            keys.leader: Leader(node=NODE, host="10.0.0.1"),
            keys.spec: SPEC,
            keys.generation: GENERATION,
            keys.go: GO,
            keys.member("10.0.0.1-aaaa"): MEMBER,
        }
        await store.txn([], [Put(key, encode(document)) for key, document in documents.items()])
        for event in EVENTS:
            await store.txn([], remember(keys, event, []))
    keys = JobKeys("j10")
    first: dict[str, Document] = {keys.incarnation: "two", keys.spec: SPEC, keys.member("10.0.0.1-aaaa"): MEMBER}
    await store.txn([], [Put(key, encode(document)) for key, document in first.items()])
    await store.close()


def asked(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`elastic-ctl`, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "launcher.ctl", *argv],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )


def complaint(code: int, *argv: str, **environ: str) -> str:
    """The one line that is said of a request that ends with `code`."""
    ran = asked(*argv, **environ)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr.startswith("elastic-ctl: error: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


# What is shown


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (("events", "--job-id", "j1", "--follow"), 1),
        (("status", "--job-id", "j10", "--watch", "1000"), 1),
        (("logs", "0", "--job-id", "j10", "--follow"), 0),
    ],
)
def test_who_follows_ends_with_whoever_read_it_though_nothing_new_comes(
    server: str, command: tuple[str, ...], lines: int
) -> None:
    argv = [sys.executable, "-m", "launcher.ctl", *command, "--elastic-server", server]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        for _ in range(lines):
            assert follower.stdout.readline()
        if not lines:
            assert "waiting" in follower.stderr.readline()
        follower.stdout.close()
        try:
            assert follower.wait(LIMIT_S) == stdout.NOBODY_READS
        finally:
            follower.kill()
        assert follower.stderr.read() == ""


def test_a_follower_of_a_log_outlives_a_recovery_in_which_its_node_is_gone_and_the_store_is_busy(server: str) -> None:
    keys = JobKeys("k2")
    lost: dict[str, Document] = {keys.incarnation: "x", keys.spec: SPEC, keys.generation: GENERATION, keys.go: GO}

    async def writes(documents: Sequence[tuple[str, Document]]) -> None:
        store = EtcdStore([server])
        for key, document in documents:
            await store.txn([], [Put(key, encode(document))])
        await store.close()

    asyncio.run(writes([*lost.items()]))
    follows = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "launcher.ctl",
            "logs",
            "0",
            "--follow",
            "--elastic-server",
            server,
            "--job-id",
            "k2",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with follows:
        assert follows.stderr is not None
        first = follows.stderr.readline()
        assert first.startswith(f"elastic-ctl: rank 0 was on node {NODE} of host 10.0.0.1, which is not registered")
        assert first.endswith("; waiting\n")
        verdict = Verdict(status=FinalStatus.FAILED, reason="stopped", run=1, g=1, at=0.0)
        asyncio.run(writes([*[(keys.spec, SPEC)] * 20, (keys.verdict, verdict)]))
        out, err = follows.communicate(timeout=LIMIT_S)
    assert (follows.returncode, out) == (0, "")
    assert err.splitlines()[-1] == "elastic-ctl: the job has failed: stopped"


def test_a_job_is_a_line_what_is_waited_for_and_a_plain_table(server: str) -> None:
    ran = asked("status", "--elastic-server", server, "--job-id", "j1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "Job j1: generation 1 (first: 2 of 2 nodes are here), run 1, np 2, world size 2, 0 of 3 restarts used",
        "Leader 10.0.0.1-aaaa: about to form the next generation: 10.0.0.2-bbbb was lost (its lease ended)",
        "M_id  node           host      ranks  state    since  step  rate  note",
        "0     10.0.0.1-aaaa  10.0.0.1  0      running  -      -     -",
        "1     10.0.0.2-bbbb  10.0.0.2  1      lost     -      -     -     no longer registered",
        "Missing: 1 node: 10.0.0.2-bbbb is no longer registered",
        "No details: cannot query node 10.0.0.1-aaaa: the job has no secret in etcd yet",
    ]


def test_the_environment_and_dashes_serve_as_for_elastic_launch(server: str) -> None:
    ran = asked("status", "--key-prefix=/team/x", ELASTIC_ETCD=server, PADDLE_ELASTIC_JOB_ID="j1", ELASTIC_NP="no")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Job j1: generation 1")


def test_inside_a_worker_the_job_is_the_workers(server: str) -> None:
    ran = asked("status", "--elastic-server", server, ELASTIC_JOB_ID="j10", ELASTIC_FENCE="i/1")
    assert ran.stdout.startswith("Job j10: no generation yet")


def test_a_script_gets_one_json_object(server: str) -> None:
    ran = asked("status", "--elastic-server", server, "--job-id", "j1", "--json")
    told = json.loads(ran.stdout)
    assert ran.stdout.count("\n") == 1
    assert (told["job_id"], told["generation"], told["world_size"], told["verdict"]) == ("j1", 1, 2, None)
    assert [(node["m_id"], node["ranks"], node["state"]) for node in told["nodes"]] == [
        (0, [0], "running"),
        (1, [1], "lost"),
    ]


def test_events_are_lines_oldest_first_or_json_for_a_script(server: str) -> None:
    ran = asked("events", "--elastic-server", server, "--job-id", "j1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "2026-11-20T10:00:00.000Z  10.0.0.1-aaaa  generation 1 formed: 2 of 2 nodes are here",
        "2026-11-20T10:01:00.500Z  10.0.0.1-aaaa  generation 2 recovery: b was lost: back in 0.30 s: notice 4 ms",
    ]
    ran = asked("events", "--elastic-server", server, "--job-id", "j1", "--json")
    first, second = map(json.loads, ran.stdout.splitlines())
    assert (first["what"], first["g"], second["phases"]) == ("generation", 1, {"detect": 0.004})
    assert asked("events", "--elastic-server", server, "--job-id", "j10").stdout == ""
    assert "no job j2" in complaint(1, "events", "--elastic-server", server, "--job-id", "j2")


def test_on_a_terminal_the_table_has_colours_unless_they_are_not_wanted(server: str) -> None:
    argv = (sys.executable, "-m", "launcher.ctl", "status", "--elastic-server", server, "--job-id", "j1")
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    coloured = on_a_terminal(argv, {**plain, "TERM": "xterm-256color"})
    assert "\x1b[" in coloured
    assert "10.0.0.2-bbbb" in coloured
    assert "\x1b[3" not in on_a_terminal(argv, {**plain, "TERM": "xterm-256color", "NO_COLOR": "1"})


def on_a_terminal(argv: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """What a command writes to a terminal of its own."""
    controller, terminal = pty.openpty()
    try:
        process = subprocess.Popen(
            argv, env={**environ, "COLUMNS": "120"}, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE
        )
    finally:
        os.close(terminal)
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, b"")
    written = os.read(controller, 1 << 16)  # A terminal holds 4 kB for its reader; the table is shorter.
    os.close(controller)
    return written.decode()


def test_a_reader_that_goes_away_is_no_stack_trace(server: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [sys.executable, "-m", "launcher.ctl", "status", "--elastic-server", server, "--job-id", "j1"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (stdout.NOBODY_READS, b"")


@pytest.mark.parametrize("words", ["--help", "status --help", "--version", "status", "events --json", "doctor"])
def test_an_answer_that_a_full_disk_does_not_take_is_one_line_and_exit_2(server: str, words: str) -> None:
    job = () if words.startswith("-") or "--help" in words else ("--elastic-server", server, "--job-id", "j1")
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "launcher.ctl", *words.split(), *job],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=LIMIT_S,
            text=True,
            check=False,
        )
    said = "elastic-ctl: error: cannot write to stdout (No space left on device); check where it is redirected\n"
    assert (ran.returncode, ran.stderr) == (2, said)


def test_a_real_job_is_shown_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    argv = [sys.executable, "-P", "-m", "launcher", "--local-nodes", "2", "--nproc-per-node", "1"]
    argv += ["--console", "all", "--stop-timeout", "0.1", "train.py"]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path), "ELASTIC_NO_PRELOAD": "1"}
    with subprocess.Popen(
        argv, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            words = next(shlex.split(line) for line in process.stderr if line.startswith("elastic-ctl status "))
            drained = threading.Thread(target=process.stderr.read)
            drained.start()
            assert process.stdout.readline().endswith("up\n")
            assert process.stdout.readline().endswith("up\n")
            ran = asked(*words[1:], "--json")
        finally:
            process.terminate()
            process.wait(LIMIT_S)
        drained.join()
    told = json.loads(ran.stdout)
    assert [(node["m_id"], node["ranks"], node["state"]) for node in told["nodes"]] == [
        (0, [0], "running"),
        (1, [1], "running"),
    ]
    assert told["now"] == "training with 2 nodes"
    assert told["proposer"] == told["nodes"][0]["node"]


# The doctor, without a job


def test_the_doctor_needs_no_job_and_checks_this_machine(tmp_path: Path) -> None:
    ran = doctor(tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    names = [line.split(":")[0].split(maxsplit=1) for line in ran.stdout.splitlines() if line[0] != " "]
    assert [name for _, name in names if name not in ("torch's GPUs", "variables")] == [
        *("python", "packages", "GPUs", "torch", "backends", "address", "container", "proxies", "ports"),
        *("log directory", "checkpoint directory", "imports", "shared memory", "priority"),
    ]
    assert {level for level, _ in names} <= {"ok", "warn"}
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_of_the_doctor_is_exit_1_and_dead_variables_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    dead = {"FLAGS_sync_nccl_allreduce": "1", "NCCL_SOCKET_IFNAME": "nope1"}
    path = stub_torch.path(tmp_path)
    ran = doctor(tmp_path, "--log-dir", "file/log", "--nic", "nope0", PYTHONPATH=path, **dead)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert re.search(
        r"^fail  log directory: .*/file is a file; use another one with --log-dir", ran.stdout, re.MULTILINE
    )
    assert re.search(r"^fail  address: --nic nope0: no such interface on this host", ran.stdout, re.MULTILINE)
    assert "warn  variables: FLAGS_sync_nccl_allreduce is set and has no effect; " in ran.stdout
    assert "fail  variables: NCCL_SOCKET_IFNAME is nope1, which matches no interface of this host" in ran.stdout


def test_a_torch_that_cannot_be_imported_fails_with_the_linkers_error_and_the_mend(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import ctypes\nctypes.CDLL('libssl.so.99')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    ran = doctor(tmp_path, "--log-dir", str(tmp_path), PYTHONPATH=path)
    assert ran.returncode == 1
    assert re.search(r"^fail  torch: import torch fails: OSError: libssl.so.99: cannot open.*libssl3", ran.stdout, re.M)


def test_the_doctor_says_that_a_server_does_not_answer_and_asks_no_further(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    path = stub_torch.path(tmp_path)
    ran = doctor(tmp_path, "--elastic-server", f"127.0.0.1:{port}", "--job-id", "j1", PYTHONPATH=path)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert re.search(rf"^fail  etcd: 127.0.0.1:{port} does not answer", ran.stdout.splitlines()[-1])


def test_the_doctor_of_a_job_compares_its_members_and_says_who_did_not_answer(server: str, tmp_path: Path) -> None:
    path = stub_torch.path(tmp_path)
    ran = doctor(tmp_path, "--elastic-server", server, "--job-id", "j1", PYTHONPATH=path)
    assert ran.returncode == 0
    assert (
        "ok    job: j1: 1 node is registered; about to form the next generation: 10.0.0.2-bbbb was lost" in ran.stdout
    )
    assert "warn  reachability: 0 of 1 nodes answered within 5 s" in ran.stdout
    assert "        no reply from 10.0.0.1-aaaa" in ran.stdout


def doctor(folder: Path, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`elastic-ctl doctor` in a folder, without variables of the machine that runs the test."""
    plain = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ELASTIC_ETCD"), "")
    return subprocess.run(
        [sys.executable, "-m", "launcher.ctl", "doctor", *argv],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **plain, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=2 * LIMIT_S,
        text=True,
        check=False,
    )


# What goes wrong


def test_a_job_that_is_not_there_is_one_line_and_exit_1(server: str) -> None:
    assert "no job j2 at" in complaint(1, "status", "--elastic-server", server, "--job-id", "j2")
    assert "/team/x/j10/" in complaint(
        1, "status", "--elastic-server", server, "--job-id", "j10", "--key-prefix", "/team/x"
    )


def test_a_server_that_is_not_there_is_one_line_and_exit_4() -> None:
    (port,) = free_ports(1)
    said = complaint(4, "status", "--elastic-server", f"127.0.0.1:{port}", "--job-id", "j1")
    assert f"127.0.0.1:{port} does not answer" in said


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ((), "no command given"),
        (("state",), "status"),
        (("status", "--elastic-server", "h:2379"), "--job-id"),
        (("status", "--job-id", "j"), "--elastic-server"),
        (("status", "--elastic-server", "h", "--job-id", "j"), "h:2379"),
        (("status", "--elastic-server", "h:2379", "--job-id", "a/b"), "--job-id"),
        (("status", "--elastic-server", "h:2379", "--job-id", "j", "--key-prefix", "x"), "--key-prefix"),
        (("status", "--elastic-serv", "h:2379", "--job-id", "j"), "--elastic-serv"),
        (("status", "--elastic-server", "h:2379", "--job-id", "j", "more"), "more"),
        (("status", "--elastic-server"), "--elastic-server"),
        (("doctor", "--port-range", "9"), "--port-range"),
        (("doctor", "--elastic-server", "h"), "h:2379"),
        (("doctor", "--np", "2"), "--np"),
        (("doctor", "train.py"), "train.py"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_names_what_is_wrong_and_exit_2(
    argv: tuple[str, ...], names: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ELASTIC_ETCD", "ELASTIC_JOB_ID", "ELASTIC_ELASTIC_SERVER"):
        monkeypatch.delenv(variable, raising=False)
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("elastic-ctl: error: ")
    assert names in err
    assert err.count("\n") == 1


def test_a_wrong_variable_is_named() -> None:
    assert "ELASTIC_ETCD" in complaint(2, "status", ELASTIC_ETCD="nonsense", ELASTIC_JOB_ID="j")


def test_tls_servers_are_asked_with_tls() -> None:
    wrong = {"FLAGS_START_PORT": "x", "ELASTIC_NP": "x"}  # Of no interest here.
    servers, job_id, prefix = named_job.named_job({"elastic_server": "https://h:2379", "job_id": "j"}, wrong)
    assert (servers.tls, servers.endpoints, job_id, prefix) == (True, ("h:2379",), "j", "/elastic")
    with pytest.raises(ConfigError, match="ELASTIC_JOB_ID"):
        named_job.named_job({"elastic_server": "h:2379"}, {})


def test_the_version_is_the_projects() -> None:
    ran = asked("--version")
    assert (ran.returncode, ran.stdout) == (0, f"elastic-ctl {__version__}\n")


def test_the_old_name_of_allow_actions_works_with_a_warning() -> None:
    ran = asked("ui", "--elastic-server", "127.0.0.1:1", "--allow-orders", "--listen", "203.0.113.1:8080")
    warning, error = ran.stderr.splitlines()
    assert warning == "elastic-ctl: --allow-orders is now --allow-actions; the old name works until 0.3"
    assert (ran.returncode, "--listen 203.0.113.1:8080 cannot be used" in error) == (2, True)
