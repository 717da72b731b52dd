"""The parent of several local nodes, with stand-ins for the agents: who is started, signalled, waited for and left."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, Put
from elastic.errors import OutcomeUnknown, StoreUnavailable
from elastic.store.embedded import EmbeddedEtcd
from elastic.store.etcd import EtcdStore
from launcher.config.machine_checks import check
from launcher.config.parse import parse
from launcher.ctl import cli
from launcher.job.named_job import named_job
from launcher.local.commands import extra_variable, joiner_line, node_argv, node_environments, status_line
from launcher.local.etcd_supervisor import STARTS_MAX, keep_running
from launcher.local.node_supervisor import exit_code
from launcher.system.private_env import inheritable_env
from tests.support.etcd_servers import free_ports
from tests.support.nvidia_smi import LISTED, smi

LIMIT_S = 30.0

STAND_IN = '''
import json, os, signal, sys, types

def run(config, disk, outputs):
    """Say who it is, then end with a code or wait for signals."""
    def ended(number):
        sys.stdout.write(json.dumps({"signal": number}) + "\\n")
        sys.stdout.flush()
        if os.environ["STAND_IN"] != "stubborn":
            os._exit(128 + number)
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # One that comes before the wait below is kept for it.
    sys.stdout.write(json.dumps({"pid": os.getpid(), "servers": config.servers, "job_id": config.job_id}) + "\\n")
    sys.stdout.flush()
    if os.environ["STAND_IN"].isdigit():
        return int(os.environ["STAND_IN"])
    while True:
        ended(signal.sigwait(numbers))

agentrun = types.ModuleType("launcher.agent.run")
agentrun.run = run
sys.modules["launcher.agent.run"] = agentrun
'''

NO_SECOND_ETCD = """
from elastic.errors import StoreUnavailable
from elastic.store.embedded import EmbeddedEtcd

start = EmbeddedEtcd.start

async def start_once(self):
    if self.version:
        raise StoreUnavailable("the disk is full")
    return await start(self)

EmbeddedEtcd.start = start_once
"""


@contextmanager
def parent(
    tmp_path: Path,
    behaviour: str,
    nodes: int = 2,
    before: tuple[str, ...] = (),
    more: str = "",
    flags: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    stderr: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """`elastic-launch --local-nodes`, whose agents are stand-ins with this behaviour, run by the command `before`.

    `more` is run before anything else in each process; `flags` are further ones, `words` the script's arguments;
    `stderr` is a pipe unless it is given.
    """
    (tmp_path / "sitecustomize.py").write_text(STAND_IN + more)
    (tmp_path / "train.py").write_text("")
    path = os.pathsep.join((str(tmp_path), *filter(None, (os.environ.get("PYTHONPATH"),))))
    environ = {**os.environ, "PYTHONPATH": path, "STAND_IN": behaviour, "CUDA_VISIBLE_DEVICES": ""}
    environ["TMPDIR"] = str(tmp_path)  # A parent that is killed cannot remove etcd's folder.
    argv = [*before, sys.executable, "-P", "-m", "launcher", "--local-nodes", str(nodes), *flags]
    argv += ["train.py", *words]
    process = subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], lines: int) -> list[dict[str, Any]]:
    """The next lines of the agents."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(lines)]


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def await_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=LIMIT_S)
    assert not left


def test_the_parent_ends_with_zero_when_every_node_saw_the_job_complete(tmp_path: Path) -> None:
    with parent(tmp_path, "0", nodes=3) as process:
        started = said(process, 3)
        assert process.wait(LIMIT_S) == 0
    assert len({one["pid"] for one in started}) == 3
    assert len({(one["job_id"], *one["servers"]) for one in started}) == 1


def test_the_parent_ends_with_the_code_of_its_nodes(tmp_path: Path) -> None:
    with parent(tmp_path, "3") as process:
        assert process.wait(LIMIT_S) == 3


def test_the_parent_tells_how_to_start_a_further_node_with_the_scripts_arguments_as_they_are(tmp_path: Path) -> None:
    with parent(tmp_path, "0", words=("a  b", "$c")) as process:
        started = said(process, 2)
        _, text = process.communicate(timeout=LIMIT_S)
    (server,) = started[0]["servers"]
    job_id = started[0]["job_id"]
    lines = text.splitlines()
    told = lines.index("elastic-launch: to add a node, run in another terminal of this host:")
    assert lines[told + 1 : told + 4] == [
        f"elastic-launch --elastic-server {server} --job-id {job_id} train.py 'a  b' '$c'",
        "elastic-launch: to see the status of the job, run:",
        f"elastic-ctl status --elastic-server {server} --job-id {job_id}",
    ]


def test_several_nodes_here_are_served_with_those_of_other_machines(tmp_path: Path) -> None:
    """The address is that of a machine in front of this one."""
    (port,) = free_ports(1)
    server = f"203.0.113.7:{port}"
    flags = ("--serve", f"0.0.0.0:{port}", "--host", "203.0.113.7", "--np", "2")
    with parent(tmp_path, "0", flags=flags) as process:
        started = said(process, 2)
        _, text = process.communicate(timeout=LIMIT_S)
    assert [one["servers"] for one in started] == [[f"127.0.0.1:{port}"]] * 2
    assert f"this host runs etcd for job {started[0]['job_id']} at {server}; " in text
    line = rf"\S+ elastic-launch --elastic-server {server} --job-id \S+ --np 2 train.py"
    assert re.search(rf"to add a node, run on another host:\n{line}\n", text)


def test_a_listed_host_behind_a_mapped_port_serves_at_all_addresses_and_says_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    flags = ("--ips", "203.0.113.7,z.invalid", "--host", "203.0.113.7", "--serve-port", str(port))
    with parent(tmp_path, "0", nodes=1, flags=flags) as process:
        (started,) = said(process, 1)
        _, text = process.communicate(timeout=LIMIT_S)
    assert started["servers"] == [f"127.0.0.1:{port}"]
    assert f"to which others can connect; etcd listens on all interfaces, port {port}\n" in text


def test_an_address_of_another_machine_is_not_served(tmp_path: Path) -> None:
    with parent(tmp_path, "0", flags=("--serve", "203.0.113.7")) as process:
        _, text = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert re.fullmatch(r"elastic-launch: error: --serve 203\.0\.113\.7 is not an address of this host; .*\n", text)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [((), False), (("--print-secret",), True), (("--print-secret", "--log-format", "json"), True)],
)
def test_a_random_secret_is_printed_to_a_pipe_only_where_that_is_asked_for(
    tmp_path: Path, flags: tuple[str, ...], shown: bool
) -> None:
    (port,) = free_ports(1)
    with parent(tmp_path, "0", flags=("--serve", f"127.0.0.1:{port}", *flags)) as process:
        _, text = process.communicate(timeout=LIMIT_S)
    assert len(re.findall(r"ELASTIC_JOB_SECRET=[0-9a-f]{32} elastic-(?:launch|ctl status) --elastic-server", text)) == (
        2 if shown else 0
    )
    assert ("to see it, start with --print-secret" in text) == (not shown)
    assert "--print-secret train.py" not in text
    if "json" in flags:
        assert all(json.loads(line)["level"] for line in text.splitlines())
    if not shown:
        (line,) = [
            line for line in text.splitlines() if line.startswith("ELASTIC_JOB_SECRET=") and "elastic-ctl" in line
        ]
        environ = {"PATH": str(tmp_path)}  # No command can be found.
        refused = subprocess.run(["/bin/sh", "-c", line], env=environ, capture_output=True, check=False)
        assert refused.returncode
        assert b"ELASTIC_JOB_SECRET" in refused.stderr, "the shell says what is missing, and runs nothing"


def test_a_terminal_shows_the_random_secret(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    controller, terminal = pty.openpty()
    with parent(tmp_path, "0", flags=("--serve", f"127.0.0.1:{port}"), stderr=terminal) as process:
        os.close(terminal)
        assert process.wait(LIMIT_S) == 0
    text = b""
    with suppress(OSError):  # Nobody has the other end open any more.
        while data := os.read(controller, 1 << 16):
            text += data
    os.close(controller)
    (line,) = re.findall(rb"host:\r\n(.*)\r\n", text)
    assert re.fullmatch(
        rb"ELASTIC_JOB_SECRET=[0-9a-f]{32} elastic-launch --elastic-server \S+ --job-id \S+ train.py", line
    )


def test_a_name_without_an_address_is_not_served(tmp_path: Path) -> None:
    with parent(tmp_path, "0", flags=("--serve", "nosuch.invalid")) as process:
        _, text = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert re.fullmatch(r"elastic-launch: error: --serve nosuch\.invalid: .* cannot resolve .* use an addr.*\n", text)


def test_one_ctrl_c_reaches_every_node_once(tmp_path: Path) -> None:
    with parent(tmp_path, "waiting") as process:
        said(process, 2)
        everybody = family(process)
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does it: to the whole foreground group.
        assert said(process, 2) == [{"signal": signal.SIGINT}] * 2
        assert process.wait(LIMIT_S) == 128 + signal.SIGINT
        assert process.stderr is not None
        last = process.stderr.read().splitlines()[-1]
        assert last == "elastic-launch: the etcd of this job ends with this process, and the job with it"
        await_gone(everybody)


def test_a_terminal_that_is_closed_reaches_the_nodes_and_is_the_exit_code(tmp_path: Path) -> None:
    with parent(tmp_path, "kind") as process:
        said(process, 2)
        process.send_signal(signal.SIGHUP)
        assert said(process, 2) == [{"signal": signal.SIGHUP}] * 2
        assert process.wait(LIMIT_S) == 128 + signal.SIGHUP


def test_under_nohup_a_hang_up_ends_nobody(tmp_path: Path) -> None:
    with parent(tmp_path, "waiting", before=("nohup",)) as process:
        said(process, 2)
        os.killpg(process.pid, signal.SIGHUP)
        process.send_signal(signal.SIGTERM)  # What comes after shows that the first was not counted.
        assert said(process, 2) == [{"signal": signal.SIGTERM}] * 2
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with parent(tmp_path, "stubborn") as process:
        said(process, 2)
        everybody = family(process)
        process.send_signal(signal.SIGTERM)
        assert said(process, 2) == [{"signal": signal.SIGTERM}] * 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
        await_gone(everybody)


def test_an_etcd_that_dies_and_cannot_be_started_again_ends_the_nodes_and_is_4(tmp_path: Path) -> None:
    with parent(tmp_path, "kind", more=NO_SECOND_ETCD) as process:
        said(process, 2)
        (etcd,) = [child for child in psutil.Process(process.pid).children() if child.name() == "etcd"]
        etcd.kill()
        assert said(process, 2) == [{"signal": signal.SIGTERM}] * 2
        assert process.wait(LIMIT_S) == 4
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert "etcd of this job exited (killed by SIGKILL, perhaps out of memory); starting a new" in lines[-2]
        assert lines[-1] == "elastic-launch: error: the disk is full"


def test_an_etcd_that_dies_again_and_again_is_not_started_for_ever() -> None:
    class Dying(EmbeddedEtcd):
        starts = 0

        async def ended(self) -> int:
            return -signal.SIGBUS

        async def start(self) -> str:
            self.starts += 1
            return "127.0.0.1:1"

    lines: list[str] = []
    etcd = Dying("etcd")
    with pytest.raises(StoreUnavailable, match=r"exited 6 times, most recently: bus error .*; .* --elastic-server"):
        asyncio.run(keep_running(etcd, lines.append))
    assert etcd.starts == len(lines) == STARTS_MAX


def test_a_parent_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    with parent(tmp_path, "stubborn") as process:
        pids = {one["pid"] for one in said(process, 2)}
        everybody = family(process)
        assert pids < {one.pid for one in everybody}, "the nodes and etcd"
        process.kill()
        await_gone(everybody)


def test_a_node_that_is_killed_does_not_end_the_others(tmp_path: Path) -> None:
    with parent(tmp_path, "waiting") as process:
        first, second = (one["pid"] for one in said(process, 2))
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGTERM)
        assert said(process, 1) == [{"signal": signal.SIGTERM}]
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM


def test_etcd_stays_while_a_node_of_another_terminal_is_registered(tmp_path: Path) -> None:
    async def join_and_leave(process: subprocess.Popen[str], server: str, job_id: str, pids: list[int]) -> str:
        store = EtcdStore([server])
        key = JobKeys(job_id).member("other-1")
        await store.txn([], [Put(key, b"{}")])
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        assert process.stderr is not None
        text = next(line for line in process.stderr if "registered" in line)
        assert process.poll() is None
        with suppress(OutcomeUnknown):  # With the last node gone the server may end before it has answered.
            await store.txn([], [Delete(KeyRange.key(key))])
        await store.close()
        return text

    with parent(tmp_path, "waiting") as process:
        started = said(process, 2)
        (server,) = started[0]["servers"]
        pids = [one["pid"] for one in started]
        text = asyncio.run(join_and_leave(process, server, started[0]["job_id"], pids))
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert re.search(r"1 node of another terminal is still registered", text)


# Values


@pytest.mark.parametrize(
    ("codes", "where_it_ended", "where_it_is_open"),
    [
        ([0, 0, 0], 0, 0),
        ([0, -9, 0], 0, 137),
        ([0, 143], 0, 143),
        ([0, 4], 0, 4),
        ([0, 4, 143, 3], 0, 3),
        ([0, 1], 1, 1),
        ([4, 1, 3], 1, 1),
        ([4, 3], 3, 3),
        ([143, 4], 4, 4),
        ([130, 130], 130, 130),
        ([-9, -9], 137, 137),
        ([], 0, 0),
    ],
)
def test_the_most_telling_code_of_all_nodes_is_the_parents(
    codes: list[int], where_it_ended: int, where_it_is_open: int
) -> None:
    assert exit_code(codes, ended=True) == where_it_ended
    assert exit_code(codes, ended=False) == where_it_is_open


def command(*argv: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], str, tuple[dict[str, str], ...]]:
    config = check(parse([*argv, "-m", "json.tool", "--np", "x"], environ), environ)
    server = "127.0.0.1:1234"
    line = joiner_line(config, server, environ, secret=True)
    return node_argv(config, server), line, node_environments(config, environ)


def test_a_node_gets_the_users_other_flags_and_the_script() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "ELASTIC_LOCAL_NODES": "3"}
    argv, line, environments = command("--job-id", "j", "--stop-timeout=5", "--rerun", "--np", "1:3", environ=environ)
    config = parse(argv, environments[0])
    assert config.local_nodes == 0
    assert (config.servers, config.job_id, str(config.np)) == (("127.0.0.1:1234",), "j", "1:3")
    assert (config.stop_timeout_s, config.rerun, config.host) == (5.0, True, "127.0.0.1")
    assert (config.script, config.script_args) == ("json.tool", ("--np", "x"))
    assert "--rerun" not in line
    assert "--np 1:3 " in line
    assert "--force" not in line
    assert len(environments) == 3


@contextmanager
def pipe(text: str) -> Iterator[str]:
    """The path of a pipe with this text, as the shell's `<(echo text)` gives it."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    try:
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


SECRET_TEXT = "0123456789abcdef"
CLOSED = ("job_secret_file", "ELASTIC_JOB_SECRET")
KNOWN = ("etcd_password_file", "ELASTIC_ETCD_PASSWORD")


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize(("flag", "variable"), [CLOSED, KNOWN])
def test_what_a_pipe_said_once_is_known_to_every_node_and_on_no_command_line(
    flag: str, variable: str, by_variable: bool
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "ELASTIC_JOB_ID": "j"}
    server = ("--elastic-server=127.0.0.1:1234", "--etcd-user=u") if flag == KNOWN[0] else ()
    with pipe(f"{SECRET_TEXT}\n") as name:
        if by_variable:
            environ[f"ELASTIC_{flag.upper()}"] = name
        flags = () if by_variable else (f"--{flag}={name}",)
        config = check(parse(("--local-nodes=2", *server, *flags, "-m", "json.tool"), environ), environ)
    argv, environments = node_argv(config, "127.0.0.1:1234"), node_environments(config, environ)
    for environment in environments:
        who = check(parse(argv, environment), environment).login
        assert SECRET_TEXT in (who.secret, who.password)
        assert not inheritable_env(environment, ()).keys() & {variable, f"ELASTIC_{flag.upper()}"}, "a worker's"
    line = joiner_line(config, "127.0.0.1:1234", environ, secret=True)
    status = status_line(config, "127.0.0.1:1234", secret=True)
    assert not [word for word in (*argv, line, status) if flag in word or SECRET_TEXT in word]
    assert extra_variable(config) == variable


def test_a_file_is_named_to_nodes_and_read_by_each_of_them(tmp_path: Path) -> None:
    """What is written into it later counts, too."""
    file = tmp_path / "secret"
    file.write_text(SECRET_TEXT)
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    config = check(parse((f"--job-secret-file={file}", "-m", "json.tool"), environ), environ)
    assert f"--job-secret-file={file}" in node_argv(config, "127.0.0.1:1")
    assert node_environments(config, environ) == (environ,)
    assert extra_variable(config) == ""
    named = {**environ, "ELASTIC_JOB_SECRET_FILE": str(file)}
    config = check(parse(("-m", "json.tool"), named), named)
    assert node_environments(config, named) == (named,)
    assert extra_variable(config) == "ELASTIC_JOB_SECRET", "another terminal has no such variable"


def test_a_node_on_an_interface_that_the_user_names_is_not_sent_to_the_loopback() -> None:
    argv, _, _ = command("--nic", "lo", environ={"CUDA_VISIBLE_DEVICES": ""})
    config = parse(argv, {})
    assert (config.nic, config.host) == ("lo", "")


@pytest.mark.parametrize("nodes", [(), ("--local-nodes", "3")])
def test_a_further_node_of_a_job_without_np_names_none_and_the_job_takes_it_in(nodes: tuple[str, ...]) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    argv, line, environments = command(*nodes, environ=environ)
    first, further = parse(argv, environ), parse(shlex.split(line)[1:], environ)
    assert str(first.np) == f"{len(environments)}+"
    assert (first.force, further.force) == (True, False), "a further node may be the first to register"
    assert (further.np_given, further.given) == (
        False,
        (("elastic_server", "127.0.0.1:1234"), ("job_id", first.job_id)),
    )


def test_the_line_for_a_further_node_has_what_the_user_typed() -> None:
    typed = (
        "--np=2",
        "--nproc-per-node",
        "1",
        "--join-window",
        "1",
        "--key-prefix=/team/e",
        "--print-secret",
        "--quiet",
    )
    _, line, _ = command(*typed, environ={"CUDA_VISIBLE_DEVICES": "", "ELASTIC_JOB_ID": "j"})
    server = "--elastic-server 127.0.0.1:1234 --job-id j"
    flags = "--np 2 --nproc-per-node 1 --join-window=1 --key-prefix=/team/e --quiet"
    assert line == f"elastic-launch {server} {flags} -m json.tool --np x"


def test_the_line_for_the_status_finds_the_job(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET_TEXT)
    environ = {"CUDA_VISIBLE_DEVICES": "", "ELASTIC_JOB_ID": "j"}
    config = check(
        parse(("--key-prefix=/a", "--join-window=1", f"--job-secret-file={file}", "-m", "json.tool"), environ), environ
    )
    line = status_line(config, "127.0.0.1:1234", secret=True)
    flags = f"--elastic-server 127.0.0.1:1234 --job-id j --key-prefix=/a --job-secret-file={file}"
    assert line == f"elastic-ctl status {flags}"
    asked = vars(cli.parser().parse_args(shlex.split(line)[1:]))
    assert named_job(asked, {})[1:] == ("j", "/a")


def test_a_further_node_of_this_machine_does_not_get_its_control_port() -> None:
    argv, line, _ = command("--ctrl-port", "9988", environ={"CUDA_VISIBLE_DEVICES": ""})
    assert parse(argv, {}).ctrl_port == 9988
    assert "--ctrl-port" not in line


def test_cards_are_shared_out_to_the_nodes_and_the_rest_is_offered_to_a_further_one() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    argv, line, environments = command("--local-nodes", "2", environ=environ)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["4", "5"]
    assert argv[6:8] == ("--nproc-per-node", "1")
    assert line.startswith("CUDA_VISIBLE_DEVICES=6 elastic-launch ")


def test_with_fewer_cards_than_workers_nobody_gets_one() -> None:
    _, _, environments = command("--local-nodes", "2", environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["", ""]


@pytest.mark.parametrize(
    "flags",
    [
        ("--server-num=2", "--worker-num=2"),
        ("--server-num=1", "--worker-num=2", "--heter-worker-num=1", "--run-mode=ps-heter"),
        ("--servers=127.0.0.2:6170", "--workers=127.0.0.2:6171,127.0.0.2"),
        ("--servers=127.0.0.2:6170", "--workers=127.0.0.2", "--np=1"),
        ("--np=2", "--server-num=1", "--worker-num=2"),
        ("--local-nodes=3", "--server-num=1", "--worker-num=2"),
    ],
)
def test_a_node_has_the_roles_that_its_parent_read(flags: tuple[str, ...]) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    config = check(parse([*flags, "-m", "json.tool"], environ), environ)
    child = check(parse(node_argv(config, "127.0.0.1:1234"), environ), environ)
    assert (child.run_mode, child.roles, child.np) == (config.run_mode, config.roles, config.np)
    assert child.host == (config.host or "127.0.0.1")


def test_the_line_for_another_node_of_workers_has_the_np_that_keeps_servers_apart() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    _, line, _ = command("--local-nodes=3", "--server-num=1", "--worker-num=2", environ=environ)
    assert "--np 2+ " in line
    assert "--force" not in line
    assert "--nproc-per-node" not in line


def test_named_cards_are_shared_out_and_not_named_again_to_each_node(tmp_path: Path) -> None:
    environ = {**smi(tmp_path, LISTED), "ELASTIC_GPUS": "0"}
    argv, line, environments = command("--gpus", "3,0", "--local-nodes", "2", environ=environ)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments] == ["3", "0"]
    assert {one["CUDA_DEVICE_ORDER"] for one in environments} == {"PCI_BUS_ID"}
    for environment in environments:
        config = check(parse(argv, environment), environment)
        assert (config.gpus, config.slots) == ((), 1)
        assert config.gpu_ids == (environment["CUDA_VISIBLE_DEVICES"],)
    further = check(parse(shlex.split(line)[1:], smi(tmp_path, LISTED)), smi(tmp_path, LISTED))
    assert (further.gpus, further.slots) == (("1",), 1), "the first card that nobody uses"


def test_one_local_node_has_its_named_cards_too(tmp_path: Path) -> None:
    argv, line, (environment,) = command("--gpus", "3,2", environ=smi(tmp_path, LISTED))
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,2"
    assert check(parse(argv, environment), environment).slots == 2
    assert "--gpus 0,1 " in line


def test_where_no_card_is_left_a_further_node_is_told_to_use_none(tmp_path: Path) -> None:
    _, line, _ = command("--gpus", "3,2,1", environ=smi(tmp_path, LISTED))
    assert line.startswith("CUDA_VISIBLE_DEVICES= elastic-launch ")
    assert "--gpus" not in line


def test_without_a_driver_each_node_has_its_share_of_cpu_workers(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    argv, line, environments = command("--gpus", "4,5,6,7", "--local-nodes", "2", environ=environ)
    for environment in environments:
        assert "CUDA_VISIBLE_DEVICES" not in environment
        assert check(parse(argv, environment), environment).slots == 2
    assert "--gpus" not in line
    argv, _, (alone,) = command("--gpus", "4", environ={**environ, "CUDA_VISIBLE_DEVICES": "0,1"})
    alone_there = check(parse(argv, alone), alone)
    assert (alone_there.slots, alone_there.gpu_ids) == (1, ())


def test_a_node_that_sees_its_own_card_alone_is_told_so_by_its_parent(tmp_path: Path) -> None:
    flags = ("--gpus", "3,2", "--isolate-gpus")
    argv, _, (environment,) = command(*flags, environ=smi(tmp_path, LISTED))
    config = check(parse(argv, environment), environment)
    assert (config.isolate_gpus, config.shown_gpus) == (True, ("3", "2"))
