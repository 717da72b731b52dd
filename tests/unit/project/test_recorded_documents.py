"""Each release reads what earlier releases wrote, and a release reads what its newer neighbour writes.

`recorded` has the documents of each minor release as it wrote them.
"""

from __future__ import annotations

import json
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Final, get_args

import msgspec
import pytest
import torch

from elastic.channel.messages import AgentMessage, WorkerMessage
from elastic.core.keys import JobKeys
from elastic.train.checkpoint import Checkpoints, fence
from elastic.train.restore.restore_step import rolled_back
from launcher.history.events import EventKind
from launcher.wire.inspect_messages import InspectAnswer, InspectQuestion
from launcher.wire.link_messages import LinkMessage, read_greeting
from tests.scripts import record_documents
from tests.support import recorded_documents
from tests.support.recorded_documents import CURRENT, GREETING, MARK, MESSAGES, RECORDED, RECORDS, STEP

RELEASES: Final = sorted(path for path in RECORDED.iterdir() if path.is_dir())
DOCUMENTS: Final = [
    path
    for release in RELEASES
    for path in sorted(release.rglob("*"))
    if path.suffix in (".json", ".base64") and path.relative_to(release).parts[0] != "checkpoint"
]
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(RECORDED)))
each_release = pytest.mark.parametrize("release", RELEASES, ids=attrgetter("name"))


def name_of(path: Path) -> str:
    """The name of a document: its path below the release, without the suffix."""
    _, *parts = path.relative_to(RECORDED).with_suffix("").parts
    return "/".join(parts)


@each_document
def test_a_recorded_document_is_read_with_the_value_of_each_of_its_fields(path: Path) -> None:
    document = recorded_documents.document_of(path)
    value = recorded_documents.read(name_of(path), document)
    today = msgspec.json.decode(msgspec.json.encode(value))
    assert not list(recorded_documents.lost_fields(recorded_documents.json_of(document), today))


@each_document
def test_a_document_of_a_newer_neighbour_with_additional_fields_is_read(path: Path) -> None:
    value = recorded_documents.read(name_of(path), recorded_documents.document_of(path))
    today = msgspec.json.decode(msgspec.json.encode(value))
    newer = recorded_documents.of_newer_release(today, value)
    assert newer != today or isinstance(value, str)
    assert recorded_documents.read(name_of(path), json.dumps(newer).encode()) == value


@each_release
def test_the_elements_of_documents_in_the_form_of_arrays_keep_their_order(release: Path) -> None:
    cluster_spec, go, curve, answer = (
        recorded_documents.read(name, recorded_documents.document_of(release / f"{name}.json"))
        for name in (
            "etcd/ps/generation_cluster_spec",
            "etcd/collective/go",
            "etcd/collective/curve",
            "etcd/collective/answers/0123456789abcdef/h1-1",
        )
    )
    member, before, budget = cluster_spec.members[0], cluster_spec.before, cluster_spec.budget
    assert (member.node, member.host, member.masters, member.ports, member.since) == ("h1-1", "h1", (7000,), (6000,), 1)
    assert (before.g, before.nodes, before.since) == (2, ("h1-1", "h3-1"), (0, 1))
    assert (budget.charged, budget.consecutive_failures, budget.step, budget.judged_g) == (1, 2, 40, 3)
    host, evicted = budget.hosts[0], cluster_spec.evicted[0]
    assert (host.host, host.failures, host.times, host.g, host.words) == ("h3", 2, 1, 3, "exit code 1")
    assert (evicted.node, evicted.host, evicted.create_revision, evicted.left_s) == ("h3-1", "h3", 12, 30.0)
    other, point = go.cause.others[0], curve.points[0]
    assert (other.rank, other.host, other.words, other.log) == (2, "h3", "SIGKILL", "/log/workerlog.2")
    assert (point.step, point.at, point.g, point.loss, point.rate) == (40, 1.7e9, 3, 0.5, 2.0)
    assert (answer.unreached[0].node, answer.unreached[0].why) == ("h3-1", "refused")


@each_release
def test_the_greeting_of_a_listener_is_read(release: Path) -> None:
    assert read_greeting((release / "link" / "greeting.txt").read_bytes().removesuffix(b"\n")) == GREETING


@each_release
def test_a_checkpoint_directory_is_read_as_it_is_and_with_additional_fields(release: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(release / "checkpoint", tmp_path / "checkpoint")
    for newer in (False, True):
        for path in folder.rglob("*.json") if newer else ():
            path.write_text(json.dumps(json.loads(path.read_text()) | {"field of a newer release": 1}))
        loaded = Checkpoints(folder, mark="", rank=0).load()
        assert loaded is not None
        assert (loaded.step, loaded.generation, loaded["values"]) == (STEP, 2, {"step": STEP})
        assert torch.equal(loaded["model"]["weight"], torch.arange(4.0))
        claim, rollback = fence.current(folder), rolled_back(folder)
        assert claim is not None
        assert rollback is not None
        assert (claim.mark, claim.incarnations) == (MARK, ("i1",))
        assert (rollback.step, rollback.aside) == (STEP, ("aside-step-0000000007.g2",))


def test_the_current_minor_release_is_recorded_completely() -> None:
    missing = [name for name in (*recorded_documents.files(), "checkpoint") if not (CURRENT / name).exists()]
    assert not missing, f"run python -m tests.scripts.record_documents, and commit {CURRENT}"


def test_each_kind_of_document_has_a_value_to_record() -> None:
    unions = (LinkMessage, InspectQuestion, InspectAnswer, WorkerMessage, AgentMessage)
    assert {type(message) for messages in MESSAGES.values() for message in messages} == {
        kind for union in unions for kind in get_args(union)
    }
    keys = JobKeys("collective", "")
    names = {value.removeprefix(keys.root) for name, value in vars(keys).items() if name not in ("job_id", "root")}
    recorded = [name.partition("/")[2] for name in RECORDS]
    assert not [name for name in names if not any(record.startswith(name) for record in recorded)]
    assert {record.partition("-")[2] for record in recorded if record.startswith("events/")} == set(EventKind)


def test_a_recorded_release_is_completed_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record_documents.main(tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"channel", "checkpoint", "etcd", "link", "status"}
    old, missing = tmp_path / "link" / "ping.json", tmp_path / "link" / "pong.json"
    old.write_bytes(b"of an earlier patch release")
    missing.unlink()
    assert [record_documents.main(tmp_path) for _ in range(2)] == [0, 1]
    assert missing.exists()
    assert old.read_bytes() == b"of an earlier patch release"
    assert "never overwritten" in capsys.readouterr().err
