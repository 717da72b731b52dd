"""Whole jobs on an etcd with certificates, users and rights: what is enough, what is not, and what changes."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Put
from elastic.errors import StoreDenied
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.etcd.stubs import rpc
from tests.support.agent_process import Node
from tests.support.etcd_roles import PASSWORDS, Rights
from tests.support.etcd_servers import binary_of, one_server
from tests.support.etcd_users import add_users
from tests.support.job_harness import Job, Stage, story
from tests.support.tls_authority import authority

TOKEN_S = 1
"""A token of etcd lives so long, if nothing is asked with it."""
LIMIT_S = 60.0
REFUSED = r"etcd refuses this node \(.*\); workers continue while their lease is valid$"


@pytest.fixture(params=["simple", "jwt"])
def quick_tokens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """An etcd whose tokens end after a second: simple ones if they are not used, signed ones in any case."""
    flags = (f"--auth-token-ttl={TOKEN_S}",)
    if request.param == "jwt":
        ours = authority(tmp_path)
        ours.run("pkey", "-in", "here-key.pem", "-pubout", "-out", "public.pem")
        public, private = ours.path("public.pem"), ours.client.key
        flags = (f"--auth-token=jwt,pub-key={public},priv-key={private},sign-method=ES256,ttl={TOKEN_S}s",)
    server = one_server(find_etcd(), tmp_path / "etcd", *flags).start()
    yield Stage(server, tmp_path)
    server.kill()


def administrator(job: Job) -> Rights:
    """Who gives rights on the job's etcd."""
    folder = job.folder / "administrator"
    folder.mkdir(exist_ok=True)
    return Rights(folder, job.etcd.endpoint)


def login(job: Job, user: str = "train") -> tuple[str, ...]:
    """The flags of a user."""
    return "--etcd-user", user, "--etcd-password-file", str(job.folder / "administrator" / f"{user}-password")


def timeless(shown: str) -> str:
    """What `status` shows, without for how long it has been so."""
    return re.sub(r" +\d+ s +", " ", shown)


def ctl(job: Job, *argv: str, job_id: str = "") -> subprocess.CompletedProcess[str]:
    """`elastic-ctl`, run to its end."""
    named = ("--elastic-server", job.etcd.endpoint, "--job-id", job_id or job.job_id)
    command = (sys.executable, "-m", "launcher.ctl", argv[0], *named, *argv[1:])
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def environment_of(process: int) -> bytes:
    """What a process was started with, as every process of its user can read it."""
    return Path(f"/proc/{process}/environ").read_bytes()


async def restart(job: Job, nodes: list[Node]) -> Node:
    """Have a worker fail, so that the agents write what happened and form the job again; the node that it is of."""
    world = await job.newest_world(len(nodes))
    await world[0].exits(7)
    return job.node_of(world[0])


async def completes(job: Job, nodes: list[Node]) -> None:
    for worker in await job.newest_world(len(nodes)):
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0 for _ in nodes]


def nothing_was_refused(nodes: list[Node]) -> bool:
    return not any("refuses" in line or "does not answer" in line for node in nodes for line in node.lines)


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_the_rights_of_the_page_are_enough_for_a_whole_job_over_tls_whose_tokens_end(
    tmp_path: Path, version: str
) -> None:
    binary = binary_of(version)
    if binary is None:
        pytest.skip(f"there is no etcd {version} on this machine")
    ours = authority(tmp_path)
    tls, client = (*ours.server(), *ours.wants_clients), ours.client
    server = one_server(binary, tmp_path / "etcd", *tls, f"--auth-token-ttl={TOKEN_S}").start(client)

    async def told(job: Job) -> None:
        admin = job.folder / "administrator"
        admin.mkdir()
        Rights(admin, job.etcd.endpoint, client).grant("the cluster", "all jobs")
        files = ("--etcd-ca", client.ca, "--etcd-cert", client.cert, "--etcd-key", client.key)
        first = await job.node("--np", "2", *files, *login(job))
        by_variables = {f"ELASTIC_ETCD_{name}": getattr(client, name.lower()) for name in ("CA", "CERT", "KEY")}
        secret = {"ELASTIC_ETCD_PASSWORD": PASSWORDS["train"], "ELASTIC_ETCD_USER": "train"}
        second = await job.node("--np", "2", environ=by_variables | secret)
        nodes = [first, second]
        await job.world(1, 2)
        for process in second.processes():
            if process not in (second.process.pid, *second.writers()):  # The agent, and its twin that writes logs.
                assert PASSWORDS["train"].encode() not in environment_of(process)
        shown = ctl(job, "status", *files, *login(job))
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "generation 1" in shown.stdout
        ours.sign("train", "DNS:a.client")  # etcd takes the common name for the user.
        by_name = (
            "--etcd-ca",
            client.ca,
            "--etcd-cert",
            ours.path("train.pem"),
            "--etcd-key",
            ours.path("train-key.pem"),
        )
        assert timeless(ctl(job, "status", *by_name).stdout) == timeless(shown.stdout)
        await asyncio.sleep(2 * TOKEN_S)  # Tokens that nobody uses end, and nobody tells.
        await restart(job, nodes)
        world = await job.newest_world(2)
        assert ctl(job, "events", *files, *login(job)).returncode == 0
        looked = ctl(job, "doctor", *files, *login(job))
        assert "ok    reachability: every node can connect to every other (2 nodes)" in looked.stdout, looked.stdout
        for name in ("ELASTIC_ETCD_KEY", "ELASTIC_ETCD_PASSWORD", "ELASTIC_ETCD_PASSWORD_FILE"):
            assert not any(name in worker.env for worker in world)
        await completes(job, nodes)
        assert nothing_was_refused(nodes)
        said = [line for node in nodes for line in (*node.lines, *node.shown)]
        written = [file.read_text() for file in job.folder.glob("*/log/*")]
        assert not any(PASSWORDS["train"] in text for text in (*said, *written, looked.stdout, shown.stdout))

    try:
        Stage(server, tmp_path).play(told)
    finally:
        server.kill()


def test_a_user_with_rights_on_one_job_runs_it_and_neither_reads_nor_writes_another(own_stage: Stage) -> None:
    async def told(job: Job) -> None:
        administrator(job).grant("the cluster", "one job")
        node = await job.node("--job-id", "j1", *login(job, "train-j1"))
        other = await job.node("--job-id", "j10", *login(job, "train-j1"))
        assert await other.exits() == 3
        (line,) = other.lines
        assert line.startswith(
            f"elastic-launch: error: etcd at {job.etcd.endpoint}: permission denied; the user train-j1 "
        )
        assert "etcdctl role grant-permission ROLE --prefix=true readwrite /elastic/" in line
        refused = ctl(job, "status", *login(job, "train-j1"), job_id="j10")
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (3, "", 1)
        options = EtcdOptions(user="train-j1", password=PASSWORDS["train-j1"])
        store = EtcdStore([job.etcd.endpoint], options=options)
        for call in (store.list(KeyRange.prefix("/elastic/j10/")), store.txn((), [Put(JobKeys("j10").spec, b"")])):
            with pytest.raises(StoreDenied):
                await call
        await store.close()
        (worker,) = await job.world(1, 1, job_id="j1")
        await worker.exits(0)
        assert await node.exits() == 0

    own_stage.play(told)


def test_what_is_wrong_at_the_start_is_one_line_each_and_exit_3(own_stage: Stage) -> None:
    async def told(job: Job) -> None:
        (job.folder / "tls").mkdir()
        ours = authority(job.folder / "tls")
        administrator(job).grant("the cluster", "all jobs")
        nodes = {
            "does not use TLS": await job.node("--etcd-ca", ours.client.ca, *login(job)),
            "it requires a user": await job.node(),
            "authentication failed": await job.node("--etcd-user", "nobody", *login(job)[2:]),
            "permission denied": await job.node("--key-prefix", "/other", *login(job)),
        }
        for words, node in nodes.items():
            assert await node.exits() == 3
            (line,) = node.lines
            assert words in line
            assert not any(text in line for text in PASSWORDS.values())

    own_stage.play(told)


@story
async def test_a_server_that_says_nothing_is_given_up_after_the_connect_timeout(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"https://127.0.0.1:{silent.getsockname()[1]}"
        node = await job.node("--elastic-server", server, "--connect-timeout", "1")
        assert await node.exits() == 4
    assert [line for line in node.lines if line.startswith("elastic-launch: error: no etcd within 1 s at ")]


def test_a_right_that_is_taken_away_is_an_outage_and_the_job_goes_on_when_it_is_back(own_stage: Stage) -> None:
    async def told(job: Job) -> None:
        admin = administrator(job)
        admin.grant("the cluster", "all jobs")
        nodes = [await job.node("--np", "2", *login(job)) for _ in range(2)]
        await job.world(1, 2)
        admin.as_root("etcdctl user revoke-role train elastic")
        node = await restart(job, nodes)
        await node.says(REFUSED)
        admin.as_root("etcdctl user grant-role train elastic")
        await node.says("etcd answers again")
        await completes(job, nodes)
        for each in nodes:
            assert sum("refuses" in line for line in each.lines) <= 1
            assert each.text("launcher.log").count("permission denied") < 100, "it does not spin"

    own_stage.play(told)


def test_an_etcd_that_is_full_is_an_outage_and_the_job_goes_on_when_there_is_room(own_stage: Stage) -> None:
    async def told(job: Job) -> None:
        node = await job.node()
        await job.world(1, 1)
        admin = administrator(job)
        await _alarm(job, rpc.AlarmRequest.ACTIVATE)
        await restart(job, [node])
        await node.says(rf"database space exceeded; fix: compact and defragment it.*{REFUSED[-10:]}")
        admin.run("etcdctl alarm disarm")
        await node.says("etcd answers again")
        await completes(job, [node])

    own_stage.play(told)


async def _alarm(job: Job, action: int) -> None:
    store = EtcdStore([job.etcd.endpoint])
    await store._servers.rotation.current.stub.Alarm(rpc.AlarmRequest(action=action, alarm="NOSPACE"))
    await store.close()


def test_a_password_that_changes_is_read_again_from_its_file_and_a_token_that_ends_is_replaced(
    quick_tokens: Stage,
) -> None:
    async def told(job: Job) -> None:
        admin = administrator(job)
        admin.grant("the cluster", "all jobs")
        nodes = [await job.node("--np", "2", *login(job)) for _ in range(2)]
        await job.world(1, 2)
        file = job.folder / "administrator" / "train-password"
        file.write_text("another-password\n")
        admin.as_root("etcdctl user passwd train --interactive=false < train-password")
        await restart(job, nodes)
        await job.world(2, 2)
        await asyncio.sleep(2 * TOKEN_S)  # Tokens end, and nobody tells.
        await completes(job, nodes)
        assert nothing_was_refused(nodes)

    quick_tokens.play(told)


def test_authentication_that_is_switched_on_meanwhile_costs_nothing_with_a_user_and_is_an_outage_without(
    own_stage: Stage,
) -> None:
    async def told(job: Job) -> None:
        known = await job.node("--np", "1", "--etcd-user", "job", environ={"ELASTIC_ETCD_PASSWORD": "job-secret"})
        unknown = await job.node("--np", "1", "--job-id", "other")
        await job.world(1, 1)
        await job.world(1, 1, job_id="other")
        await add_users(job.etcd.endpoint)
        for job_id in (job.job_id, "other"):
            (worker,) = [one for one in job.workers if one.env["ELASTIC_JOB_ID"] == job_id]
            await worker.exits(7)
        (again,) = await job.world(2, 1)
        await again.exits(0)
        assert await known.exits() == 0
        assert nothing_was_refused([known])
        await unknown.says(r"etcd refuses this node \(.*: it requires a user; .*")
        store = EtcdStore([job.etcd.endpoint], options=EtcdOptions(user="root", password="root-secret"))
        await store.list(KeyRange.key("/x"))
        auth = store._servers.rotation.current.stub
        await auth.AuthDisable(rpc.AuthDisableRequest(), metadata=store._servers.metadata())
        await store.close()
        await unknown.says("etcd answers again")
        (after,) = await job.world(2, 1, job_id="other")
        await after.exits(0)
        assert await unknown.exits() == 0

    own_stage.play(told)
