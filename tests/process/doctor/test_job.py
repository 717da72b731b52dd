"""Real agents that compare themselves with the job at join, and `elastic-ctl doctor` that looks at all of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Mapping
from signal import SIGCONT, SIGSTOP

import msgspec

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Put
from elastic.core.model import JobSpec, Member
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.store.etcd import EtcdStore
from launcher.wire.probe_messages import Probe
from launcher.wire.probe_messages import encode as encode_probe
from tests.support import stub_torch
from tests.support.awaited_events import LIMIT_S
from tests.support.etcd_servers import free_ports
from tests.support.job_harness import Job, story


async def doctor(job: Job, *flags: str) -> tuple[int, str]:
    """`elastic-ctl doctor` of this job, run to its end: exit code and what it prints.

    That it imports torch, and what it says of it, is no matter of these stories.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC_", "PADDLE_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "launcher.ctl", "doctor", "--elastic-server", job.etcd.endpoint),
        *("--job-id", job.job_id, "--log-dir", str(job.folder), "--checkpoint-dir", str(job.folder), *flags),
        env={**kept, "PYTHONPATH": stub_torch.path(job.folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    assert err == b""
    assert process.returncode is not None
    return process.returncode, out.decode()


async def versions_of(store: EtcdStore, keys: JobKeys) -> Mapping[str, str]:
    """What the job's spec says of versions."""
    listing = await store.list(KeyRange.key(keys.spec))
    spec: JobSpec = decode(keys, keys.spec, listing.entries[0].value)
    return spec.versions


async def doctored(job: Job, **versions: str) -> None:
    """Make the job's spec name other versions."""
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    listing = await store.list(KeyRange.key(keys.spec))
    spec: JobSpec = decode(keys, keys.spec, listing.entries[0].value)
    changed = msgspec.structs.replace(spec, versions={**spec.versions, **versions})
    await store.txn([], [Put(keys.spec, encode(changed))])
    await store.close()


def own_python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


# --- versions ---------------------------------------------------------------------------------------------------------


@story
async def test_a_node_with_another_python_is_refused_with_both_values_and_exit_3(job: Job) -> None:
    first = await job.node("--np", "1:2")
    (worker,) = await job.world(1, 1)
    await doctored(job, python="3.10.1")
    other = await job.node("--np", "1:2")
    line = await other.says(f"python is 3.10.1 in job {job.job_id}, {re.escape(own_python())} on this node")
    assert line.string.endswith("install the same Python on every node, or join anyway with --allow-mismatch")
    assert await other.exits() == 3
    assert not worker.ended
    assert not first.ended


@story
async def test_allow_mismatch_joins_all_the_same_and_says_so_in_one_line_even_when_quiet(job: Job) -> None:
    first = await job.node("--np", "1:2", "--scale-up-interval", "0")
    await job.world(1, 1)
    await doctored(job, torch="1.13.1")
    other = await job.node("--np", "1:2", "--scale-up-interval", "0", "--allow-mismatch", "--quiet")
    await job.world(2, 2)
    (line,) = other.lines
    assert re.search(
        r"this node joins although torch is 1\.13\.1 in the job, 2\.\S+ on this node \(--allow-mismatch\)", line
    )
    assert first.id != other.id


@story
async def test_another_script_is_one_warning_line_with_both_digests_and_a_message_of_the_doctor(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("joined")
    script = job.write("other.py", job.script.read_text() + "# another one\n")
    second = await job.node("--np", "2", script=(str(script),))
    line = await second.says(r"the script's digest is ([0-9a-f]{12}) in the job, ([0-9a-f]{12}) on this node")
    assert line[1] != line[2]
    await job.world(1, 2)
    assert sum("digest" in said for node in job.nodes for said in node.lines) == 1
    code, said = await doctor(job)
    assert code == 0
    assert re.search(r"^warn  versions: script differs between nodes; copy the same script to every node$", said, re.M)
    assert f"{line[1]} on {first.id}" in said
    assert f"{line[2]} on {second.id}" in said


@story
async def test_the_same_script_and_versions_are_no_word_and_stand_in_the_store(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    await job.world(1, 2)
    assert not any("although" in line for node in nodes for line in node.lines)
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    found = await versions_of(store, keys)
    assert {"python", "torch", "launcher", "script"} <= set(found)
    for entry in (await store.list(KeyRange.prefix(keys.members))).entries:
        member: Member = decode(keys, entry.key, entry.value)
        assert member.versions == found
        assert member.link
    await store.close()


# --- network ----------------------------------------------------------------------------------------------------------


@story
async def test_a_dead_proxy_is_warned_of_once_and_the_job_runs_without_it(job: Job) -> None:
    (dead,) = free_ports(1)
    proxy = {"http_proxy": f"http://127.0.0.1:{dead}", "HTTPS_PROXY": f"http://127.0.0.1:{dead}", "no_proxy": "own"}
    node = await job.node("--np", "1", environ=proxy)
    (worker,) = await job.world(1, 1)
    line = await node.says("http_proxy and HTTPS_PROXY name a proxy: ")
    assert line.string.endswith("unset http_proxy HTTPS_PROXY")
    assert worker.env["http_proxy"] == proxy["http_proxy"]
    assert worker.env["no_proxy"] == worker.env["NO_PROXY"] == "own,localhost,127.0.0.1,::1"
    await worker.exits(0)
    assert await node.exits() == 0
    assert sum("proxy" in line for line in node.lines) == 1


@story
async def test_the_interface_that_is_named_is_what_workers_use_unless_the_user_set_another(job: Job) -> None:
    node = await job.node("--np", "1", "--nic", "lo", "--verbose", environ={"GLOO_SOCKET_IFNAME": "eth7"})
    (worker,) = await job.world(1, 1)
    assert (worker.env["NCCL_SOCKET_IFNAME"], worker.env["GLOO_SOCKET_IFNAME"]) == ("lo", "eth7")
    await node.says(r"this node is 127\.0\.0\.1 on lo; NCCL uses lo, gloo uses eth7, as GLOO_SOCKET_IFNAME says")
    await node.says("GLOO_SOCKET_IFNAME is eth7, which matches no interface of this host")


@story
async def test_an_interface_that_is_not_there_is_exit_2_with_those_that_are(job: Job) -> None:
    node = await job.node("--nic", "nope0")
    assert await node.exits() == 2
    await node.says(r"--nic nope0: no such interface on this host; use one of .*lo \(127\.0\.0\.1\)")


@story
async def test_a_member_that_its_neighbour_cannot_reach_is_warned_of_when_workers_start(job: Job) -> None:
    first = await job.node("--np", "2:2")
    await first.says("1 of 2 nodes is here")
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    (entry,) = (await store.list(KeyRange.prefix(keys.members))).entries
    moved = msgspec.structs.replace(decode(keys, entry.key, entry.value), link=free_ports(1)[0])
    await store.txn([], [Put(entry.key, encode(moved), entry.lease)])
    second = await job.node("--np", "2:2", "--quiet")
    world = await job.world(1, 2)
    line = await second.says(rf"this node cannot connect to {re.escape(first.id)}: refused; .*")
    assert line.string.endswith("if workers wait for each other, elastic-ctl doctor shows every blocked connection")
    assert not any("cannot connect to" in said for said in first.lines)
    assert not any(worker.ended for worker in world)
    await store.close()


# --- the doctor -------------------------------------------------------------------------------------------------------


@story
async def test_the_doctor_says_that_all_is_well_and_leaves_no_key_behind(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    await job.world(1, 2)
    spare = await job.node("--np", "2")
    await spare.says("spare")
    code, said = await doctor(job)
    assert code == 0, said
    assert "\x1b" not in said, "colours are for terminals"
    assert f"ok    job: {job.job_id}: 3 nodes are registered; training with 2 nodes, 1 spare" in said
    assert "ok    versions: the same on every node (python " in said
    assert "ok    reachability: every node can connect to every other (3 nodes)" in said
    assert "ok    missing: none" in said
    assert re.search(r"^ok    etcd: answers in ", said, re.M)
    assert re.search(r"^(ok|warn)  +etcd's servers: .* 3\.", said, re.M)
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    assert not (await store.list(KeyRange.prefix(keys.answers))).entries
    assert not (await store.list(KeyRange.key(keys.probe))).entries
    await store.close()
    assert not any(worker.ended for worker in job.workers)
    assert not any(node.ended for node in nodes)


@story
async def test_the_doctor_names_an_agent_that_stands_still(job: Job) -> None:
    first = await job.node("--np", "2", "--lease-ttl", "60")
    second = await job.node("--np", "2", "--lease-ttl", "60")
    await job.world(1, 2)
    second.signal(SIGSTOP)
    code, said = await doctor(job)
    second.signal(SIGCONT)
    assert code == 1
    assert (
        "fail  reachability: 1 connection is blocked between 2 nodes; check whether the agents that did not reply"
        in said
    )
    assert f"{first.id} cannot connect to {second.id}: no answer within 2 s" in said
    assert f"no reply from {second.id}" in said


@story
async def test_a_probe_from_before_a_node_joined_is_not_answered(job: Job) -> None:
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    await store.txn([], [Put(keys.probe, encode_probe(Probe("0123456789abcdef", 1.0)))])
    node = await job.node("--np", "1", "--verbose")
    (worker,) = await job.world(1, 1)
    await store.txn([], [Put(keys.probe, encode_probe(Probe("fedcba9876543210", 1.0)))])
    await node.says("elastic-ctl doctor: this node can connect to 0 others")
    entries = (await store.list(KeyRange.prefix(keys.answers))).entries
    assert [entry.key for entry in entries] == [keys.answer("fedcba9876543210", node.id)]
    assert entries[0].lease
    await store.close()
    assert not worker.ended


@story
async def test_the_doctor_says_who_is_missing_while_a_job_waits(job: Job) -> None:
    node = await job.node("--np", "3")
    await node.says("1 of 3 nodes is here; waiting for 2 more$")
    code, said = await doctor(job)
    assert code == 0
    assert "warn  missing: 1 of 3 nodes is here; waiting for 2 more; start elastic-launch on more nodes" in said
    assert "ok    reachability: the job has one node" in said


@story
async def test_a_node_that_leaves_or_has_never_come_is_named_in_the_waiting_line(job: Job) -> None:
    node = await job.node("--np", "4")
    await node.says("1 of 4 nodes is here; waiting for 3 more$")
    store, keys = EtcdStore([job.etcd.endpoint]), JobKeys(job.job_id)
    deaf = Member(host="127.0.0.1", slots=1, masters=(7000,), ports=(8000,), link=free_ports(1)[0])
    wide = msgspec.structs.replace(deaf, slots=2, ports=(8000, 8001))
    await store.txn([], [Put(keys.member("deaf-0001"), encode(deaf)), Put(keys.member("wide-0002"), encode(wide))])
    line = await node.says(r"2 of 4 nodes are here; waiting for 2 more; ")
    assert "wide-0002 does not count: it offers 2 workers per node, the job uses 1" in line.string
    await node.says(r"deaf-0001 is registered, but this node cannot connect to it: refused")
    await store.close()


@story
async def test_a_job_that_is_not_there_fails_the_check_and_a_script_gets_json(job: Job) -> None:
    code, said = await doctor(job, "--json")
    assert code == 1
    told = json.loads(said)
    assert told["ok"] is False
    assert told["checks"][-1]["name"] == "job"
    assert told["checks"][-1]["level"] == "fail"
    assert f"no job {job.job_id}" in told["checks"][-1]["text"]
    assert {"python", "torch", "ports", "log directory", "etcd"} <= {check["name"] for check in told["checks"]}
