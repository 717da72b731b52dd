"""Documents of every kind that agents of two releases exchange or that a later release reads, as values and files.

`tests.scripts.record_documents` writes them below `RECORDED` for the current minor release. The folder of a file says
how to read it: `etcd/<job>/<key>` or one of `MESSAGES`. `checkpoint` is a checkpoint directory.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace

from elastic.channel import messages as channel
from elastic.core import generation_codec, model, view_reader
from elastic.core.failure_class import FailureClass
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyValue
from elastic.core.model import ChangeReason, FinalStatus, OutcomeKind
from elastic.core.ps.model import ClusterSpec, PsLayout, Role, Task, TaskMember
from elastic.train.checkpoint import Checkpoints, fence
from elastic.train.restore import restore_step
from launcher import __version__
from launcher.agent import imports_advice
from launcher.history import events, training_curve
from launcher.history.events import EventKind, HistoryEvent
from launcher.wire import inspect_messages as status
from launcher.wire import link_messages as link
from launcher.wire import probe_messages as probe
from tests.support import inspect_documents
from tests.support.job_specs import job_spec
from tests.support.job_transcript import worker_exit
from tests.support.packages import ROOT

RECORDED: Final = ROOT / "tests" / "unit" / "project" / "recorded"
CURRENT: Final = RECORDED / __version__.rpartition(".")[0]
NONCE: Final = "0123456789abcdef" * 2
AT: Final = 1.7e9
STEP, MARK = 5, "i1/2"
"""The valid checkpoint of the directory, and the fencing token of its owner."""

VERSIONS = {"python": "3.11.9", "torch": "2.9.0", "launcher": "0.1.0"}
NP = model.Np(low=1, high=4, first=2)
SPEC = job_spec(np=NP, slots=1, lease_ttl_s=4.0, versions=VERSIONS, fatal_exit_codes=(9,), ips=("h1", "h2"))
LAYOUT = PsLayout(servers=("h1:6000",), worker_num=1, separate=True)
MEMBER = model.Member(
    host="h1", slots=1, masters=(7000, 7001), ports=(8000,), state=model.MemberState.DRAINING,
    drain_reason="spot notice", versions=VERSIONS, link=9000,
)  # fmt: skip
QUARANTINE = model.Quarantine("h3", failures=2, times=1, g=3, left_s=50.0, words="exit code 1", unreachable=True)
BUDGET = model.Budget(charged=1, consecutive_failures=2, step=40, machine_faults=4, hosts=(QUARANTINE,), judged_g=3)
EXIT = worker_exit(1, log="/log/workerlog.1", tail=("boom",), failure=FailureClass.MACHINE, why="port")
OTHER = model.OtherFailure(2, "h3", "SIGKILL", "/log/workerlog.2")
CAUSE = model.Cause(g=2, host="h2", node="h2-1", exits=(EXIT,), ranks=(1, 2), world_size=3, others=(OTHER,))
GENERATION = model.Generation(
    g=3, run=1, leader="h1-1", why=ChangeReason.NODE_LOST, reason="h3-1 was lost",
    members=(model.GenerationMember("h1-1", "h1", (7000, 7001), (8000,)),), slots=1,
    before=model.Predecessor(2, ("h1-1", "h3-1"), ChangeReason.FAILURE, (0, 1), broken=True),
    budget=BUDGET, distrusted=("h3",),
    evicted=(model.EvictedNode("h3-1", "h3", 12, 30.0),), unlinked=("h1-1",),
)  # fmt: skip
LARGE = replace(GENERATION, members=tuple(replace(GENERATION.members[0], node=f"h1-{n}") for n in range(200)))
CLUSTER_SPEC = replace(
    ClusterSpec.of(GENERATION),
    members=(TaskMember("h1-1", "h1", (7000,), (6000,), (Task(Role.SERVER, 0),), since=1, leaving=True),),
    rev=2,
    cause=CAUSE,
)
FAILURE = events.FailureRecord(
    g=2, host="h2", node="h2-1", rank=1, code=1, words="exit code 1", log="/log", tail=("x",)
)
EVENT = HistoryEvent(
    at=AT, node="h1-1", what=EventKind.GO, g=3, text="h3-1 was lost", phases={"stop": 0.1}, rev=1, of="h3-1", run=1,
    why=ChangeReason.NODE_LOST, reason="h3-1 was lost", nodes=("h1-1",), more=1, world=2, charged=1,
    status=FinalStatus.FAILED, failure=FAILURE, before=2, began=AT, complete=True, between_steps=False,
    last_step=40, last_at=AT, restored_step=39, host="h3", silent_s=5.5, by=("h2-1",),
)  # fmt: skip
RECORDS: Final[dict[str, Any]] = {
    "collective/incarnation": "i1",
    "collective/secret": "a secret",
    "collective/spec": SPEC,
    "collective/leader": model.Leader(node="h1-1", host="h1", link=9000, created=4),
    "collective/members/h1-1": MEMBER,
    "collective/generation": GENERATION,
    "collective/go": model.Go(g=3, master="h1:7000", budget=BUDGET, cause=CAUSE, note="1 of 3 restarts"),
    "collective/outcomes/0000000002/h2-1": model.Outcome(
        ended=OutcomeKind.FAILED, over=True, host="h2", exits=(EXIT,), step=40, ran_s=9.5, unreached=("h3-1",)
    ),
    "collective/outcomes/0000000002/h3-1/1": model.Outcome(
        ended=OutcomeKind.STOPPED, over=True, host="h3", forced=True, also=(EXIT,), since=1
    ),
    "collective/verdict": model.Verdict(
        status=FinalStatus.FAILED, reason="no restart is left", run=1, g=3, at=AT, cause=CAUSE
    ),
    "collective/halt": model.StopOrder(run=1, reason="maintenance", at=AT),
    "collective/leave/h1-1": model.DrainOrder(reason="maintenance", within_s=60.0, at=AT),
    "collective/saved": model.SavedCheckpoint(step=40, host="h1", folder="/checkpoints", run=1, g=3, at=AT),
    "collective/curve": training_curve.TrainingCurve(
        spacing_s=2.0, names=("lr",), points=(training_curve.CurvePoint(40, AT, 3, 0.5, 2.0, (0.1,)),)
    ),
    "collective/fork_server_imports": imports_advice.ImportAdvice(
        (imports_advice.AdvisedModule("numpy", ("OMP_NUM_THREADS",)),), ("OMP_NUM_THREADS",)
    ),
    "collective/probe": probe.Probe("0123456789abcdef", AT),
    "collective/answers/0123456789abcdef/h1-1": probe.ProbeAnswer(1, (probe.UnreachedMember("h3-1", "refused"),), 2),
    "large/generation": LARGE,
    "ps/spec": job_spec(np=NP, slots=1, layout=LAYOUT),
    "ps/generation_cluster_spec": CLUSTER_SPEC,
    **{f"collective/events/{at:014d}-{what}": replace(EVENT, what=what) for at, what in enumerate(EventKind)},
}
SNAPSHOT = replace(
    inspect_documents.window(inspect_documents.worker(0, status.WorkerState.STEPPING, step=7, rate=2.5)),
    silent=(status.SilentNode(node="h3-1", silent_s=2.5),),
    evicted=(status.EvictedHost(host="h3", node="h3-1", counts_in_s=30.0, returned=True),),
)
MESSAGES: Final[dict[str, tuple[msgspec.Struct, ...]]] = {
    "link": (
        link.LinkRequest("h2-1", NONCE), link.InspectRequest(NONCE), link.Proof("0" * 64), link.Admitted(),
        link.Heartbeat(0.25, unheard=True), link.Ping(1), link.Pong(1), link.Try(1, "h3-1", "h3", 9000, 0.5),
        link.Tried(1, reached=True), link.Vouch(1, 3), link.VouchGranted(1, 3, 3.5), link.Bye(),
        link.WaitTold("SCALE_UP_LATER", "h3-1 joins in \ufffc", (41.5,)),
    ),
    "status/question": (
        status.StatusQuestion(), status.LogQuestion(Role.WORKER, 3, 10, follow=True, g=1, offset=7, since_s=2.5),
        status.StacksQuestion(Role.SERVER, 0),
    ),
    "status/answer": (
        status.InspectWelcome(), SNAPSHOT, status.LogStart("/log/workerlog.3"), status.LogPiece(b"one\n", 3, 1, 0, 7),
        status.LogEnd(1, 0, over=True), status.StackText("Current thread", "signal"),
        status.InspectRefusal("busy", later=True),
    ),
    "channel/worker": (
        channel.WorkerHello(1, 0, 77, 3, 10), channel.Preparing("downloading"), channel.PreparationOver(),
        channel.JoiningGroup("rank 2", prepares=True, at=1.5), channel.GroupFormed(2.5), channel.AcceptsPlannedStop(),
        channel.RestoreDone(7, 3.5), channel.FirstCommit(4.5), channel.Serving(5.5),
        channel.Progress(8, 2, {"loss": 0.5, "lr": None}, 6.5, 100), channel.CheckpointSaved(8, "/checkpoints"),
        channel.SavedAndLeaving(8), channel.Unrecoverable("no data", 1), channel.AgentLogLine("a line", warn=True),
        channel.SegmentRequest("node", 4096), channel.StartedAgain("OMP_NUM_THREADS"),
        channel.ScriptImports(
            (channel.ScriptImport("wave", "/wave.py", ("A",)),), ("A",), (channel.OwnFile("__main__", "/s.py"),)
        ),
    ),
    "channel/agent": (channel.PlannedStopRequest("b joins"), channel.Segment(4096), channel.SegmentDenied("no room")),
}  # fmt: skip
GREETING: Final = link.Greeting("collective", "h1-1", NONCE)


def files() -> dict[str, bytes]:
    """Every file of a release with its content, except those of the checkpoint directory."""
    contents = {f"etcd/{name}": record_bytes(value) for name, value in RECORDS.items()}
    for folder, messages in MESSAGES.items():
        for message in messages:
            tag = str(message.__struct_config__.tag).replace(" ", "_")
            contents[f"{folder}/{tag}"] = msgspec.json.encode(message)
    plain = {f"{name}.json": data + b"\n" for name, data in contents.items() if not is_compressed(data)}
    packed = {f"{name}.base64": base64.encodebytes(data) for name, data in contents.items() if is_compressed(data)}
    return {**plain, **packed, "link/greeting.txt": link.greeting_line(GREETING)}


def record_bytes(value: Any) -> bytes:
    """The bytes of a record in etcd."""
    return generation_codec.write(value) if isinstance(value, model.Generation) else msgspec.json.encode(value)


def is_compressed(document: bytes) -> bool:
    return document.startswith(generation_codec.ZLIB_START)


def document_of(path: Path) -> bytes:
    """The bytes that a release wrote, from their file."""
    data = path.read_bytes()
    return base64.decodebytes(data) if path.suffix == ".base64" else data.removesuffix(b"\n")


def json_of(document: bytes) -> Any:
    return json.loads(zlib.decompress(document) if is_compressed(document) else document)


def read(name: str, document: bytes) -> Any:
    """Decode a document as this release does; `name` is that of its file, without the suffix."""
    folder = next(folder for folder in READERS if name.startswith(f"{folder}/"))
    return READERS[folder](name.removeprefix(f"{folder}/"), document)


def read_record(name: str, value: bytes) -> Any:
    keys, key = JobKeys(name.partition("/")[0], ""), f"/{name}"
    readers: dict[str, Callable[[bytes], Any]] = {
        keys.events: lambda value: events.read(keys, [KeyValue(key, value, 1, 1)])[0],
        keys.curve: training_curve.read,
        keys.imports: imports_advice.read_document,
        keys.probe: lambda value: probe.read(value, probe.Probe),
        keys.answers: lambda value: probe.read(value, probe.ProbeAnswer),
    }
    special = next((reader for prefix, reader in readers.items() if key.startswith(prefix)), None)
    return special(value) if special is not None else view_reader.decode(keys, key, value)


READERS: Final[dict[str, Callable[[str, bytes], Any]]] = {
    "etcd": read_record,
    "link": lambda _, line: link.decode(line),
    "status/question": lambda _, line: status.read_question(line),
    "status/answer": lambda _, line: status.read_answer(line),
    "channel/worker": lambda _, packet: channel.said.decode(packet),
    "channel/agent": lambda _, packet: channel.told.decode(packet),
}


def write_checkpoints(folder: Path) -> None:
    """Write a checkpoint directory: a claim, the checkpoint of `STEP`, and a rollback that set a newer one aside."""
    fence.claim(folder, MARK)
    checkpoints = Checkpoints(folder, rank=0, generation=2, mark=MARK, reports=False)
    for step in (STEP, STEP + 2):
        checkpoints.save(step, model={"weight": torch.arange(4.0)}, values={"step": step})
    restore_step.rollback(checkpoints, STEP, "i1/1")


def lost_fields(before: Any, after: Any, at: str = "") -> Iterable[str]:
    """Yield the paths of the values in a JSON document that are not in another one; that one may have more."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost_fields(value, after.get(name, "no such field"), f"{at}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, value in enumerate(before):
            yield from lost_fields(value, after[index], f"{at}[{index}]")
    elif before != after:
        yield f"{at}: {before!r} is {after!r}"


def of_newer_release(document: Any, value: Any) -> Any:
    """Add a field to every object of a JSON document, and an element to every object in the form of an array.

    `value` is the decoded document. It tells objects from mappings, and arrays with fields from lists.
    """
    match value:
        case msgspec.Struct():
            names = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
            if isinstance(document, list):
                fields = zip(document, names.values(), strict=True)
                return [*(of_newer_release(part, getattr(value, name)) for part, name in fields), "newer"]
            parts = {name: part for name, part in document.items() if name in names}
            newer = {name: of_newer_release(part, getattr(value, names[name])) for name, part in parts.items()}
            return {**document, **newer, "field of a newer release": ["newer"]}
        case tuple() if len(document) == len(value):
            return [of_newer_release(part, item) for part, item in zip(document, value, strict=True)]
        case _:
            return document
