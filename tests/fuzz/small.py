"""Small documents, one at a time: each is read, or refused with the error that its reader promises."""

from __future__ import annotations

import contextlib
import zlib

import msgspec

from elastic.core import generation_codec, view, view_reader
from elastic.core.kv import KeyValue
from elastic.core.model import Generation, GenerationMember, SavedCheckpoint
from elastic.core.ps.model import ClusterSpec
from elastic.errors import ConfigError, DocumentError
from elastic.train.restore.options import newest_known
from launcher.agent import imports_advice
from launcher.doctor.job import reach_check
from launcher.history import events as history_events
from launcher.history import training_curve
from launcher.history.events import EventKind, HistoryEvent
from launcher.history.job_report import build_report
from launcher.job.history import event_line
from launcher.nursery.import_closure import valid_name
from launcher.wire import probe_messages
from launcher.wire.probe_messages import Probe, ProbeAnswer, UnreachedMember
from tests.fuzz.target import Target
from tests.support.agent_harness import serving, stopping
from tests.support.strategies import KEYS

DECODERS: tuple[msgspec.json.Decoder[Generation], ...] = (
    msgspec.json.Decoder(Generation),
    msgspec.json.Decoder(ClusterSpec),
)


def generations(data: bytes) -> None:
    """A generation, as it is and compressed: both forms say the same, also when it is written again."""
    for decoder in DECODERS:
        found = read_generation(data, decoder)
        compressed = read_generation(zlib.compress(data, 1), decoder)
        assert data.startswith(generation_codec.ZLIB_START) or compressed == found, (compressed, found)
        if found is not None:
            again = generation_codec.read(generation_codec.write(found), decoder)
            assert again == found, (again, found)


def read_generation(data: bytes, decoder: msgspec.json.Decoder[Generation]) -> Generation | None:
    """The generation of a document; None if it is refused as it should be."""
    try:
        return generation_codec.read(data, decoder)
    except (ValueError, RecursionError):
        return None


def one_document(data: bytes) -> None:
    """The document of any key: the first line is the key, after the root."""
    name, _, value = data.partition(b"\n")
    with contextlib.suppress(DocumentError):
        document = view_reader.decode(KEYS, KEYS.root + name.decode(errors="replace"), value)
        assert view_reader.decode(KEYS, KEYS.root + name.decode(errors="replace"), view.encode(document)) == document


def probes(data: bytes) -> None:
    """A question of the doctor, and answers to it."""
    with contextlib.suppress(DocumentError):
        probe_messages.read(data, Probe)
    with contextlib.suppress(DocumentError):
        answer = probe_messages.read(data, ProbeAnswer)
        check = reach_check(["a", "b", "c"], {"a": answer, "b": ProbeAnswer(2)})
        assert all(isinstance(line, str) for line in (check.text, check.hint, *check.details))


def events(data: bytes) -> None:
    """The history of a job: on each line a key and an event."""
    lines = [line.partition(b" ") for line in data.split(b"\n")]
    entries = [KeyValue(KEYS.events + name.decode(errors="replace"), value, 1, 1) for name, _, value in lines]
    events = history_events.read(KEYS, entries)
    for found in events:
        assert "\n" not in event_line(found)
    told = build_report(events, training_curve.read(data), now=2e9)
    assert told.goodput is None or 0.0 <= told.goodput <= 1.0
    msgspec.json.encode(told)
    present = [entry.key for entry in entries]
    history_events.remember(KEYS, HistoryEvent(at=1.0, node="a", what=EventKind.GO, g=1), present)


def saved(data: bytes) -> None:
    """The newest checkpoint, as workers are told of it: a setting that is wrong is said in one line."""
    with contextlib.suppress(ConfigError):
        newest_known({"ELASTIC_SAVED": data.decode(errors="surrogateescape")})


def advice(data: bytes) -> None:
    """What other nodes advise to load: what is read of it can be written and read again."""
    found = imports_advice.read_document(data)
    if found is not None:
        assert imports_advice.read_document(imports_advice.write_document(found)) == found
        for module in found.modules:
            valid_name(module.name)


def documents() -> tuple[bytes, ...]:
    bench = stopping()
    bench.verdict()
    cluster_spec = serving()
    found = [b"%s\n%s" % (entry.key.removeprefix(KEYS.root).encode(), entry.value) for entry in bench.shelf.contents]
    plain = {KEYS.generation: generation_of(bench), KEYS.cluster_spec: generation_of(cluster_spec, KEYS.cluster_spec)}
    names = {key.removeprefix(KEYS.root).encode(): value for key, value in plain.items()}
    both = ((name, form) for name, value in names.items() for form in (value, zlib.compress(value)))
    return (*found, *(b"%s\n%s" % document for document in both))


def generation_of(bench: object, key: str = KEYS.generation) -> bytes:
    entry = bench.shelf.entry(key)  # type: ignore[attr-defined]
    value: bytes = entry.value
    return value


def generation_seeds() -> tuple[bytes, ...]:
    """Plain and compressed ones: what is changed is JSON, or the bytes of a zlib stream."""
    plain = [generation_of(stopping()), generation_of(serving(), KEYS.cluster_spec)]
    small = generation_codec.read(plain[0], DECODERS[0])
    large = msgspec.structs.replace(small, members=tuple(numbered(small.members[0], n) for n in range(200)))
    written = generation_codec.write(large)
    assert written.startswith(generation_codec.ZLIB_START)
    return (*plain, zlib.decompress(written), written, *map(zlib.compress, plain))


def numbered(place: GenerationMember, number: int) -> GenerationMember:
    return msgspec.structs.replace(place, node=f"n{number}", host=f"h{number}")


EVENT = HistoryEvent(
    at=1e9, node="a", what=EventKind.RECOVERY, g=2, text="b was lost", phases={"stop": 0.1, "spawn": 0.2}
)
TARGETS = (
    Target("generation", generations, generation_seeds()),
    Target("document", one_document, documents()),
    Target(
        "probe",
        probes,
        (
            msgspec.json.encode(Probe("0123456789abcdef", 1e9)),
            msgspec.json.encode(ProbeAnswer(1, (UnreachedMember("c", "refused"),), 2)),
        ),
    ),
    Target("advice", advice, (b'{"modules":[{"name":"a.b","changed":["A"]},{"name":"c"}],"changed":["A"]}',)),
    Target("events", events, (b"00001000000000-a " + msgspec.json.encode(EVENT) + b"\n00001000000001-b {}",)),
    Target(
        "saved",
        saved,
        (
            b'{"step":7,"host":"h","folder":"/ckpt"}',
            msgspec.json.encode(SavedCheckpoint(step=7, host="h", folder="/ckpt", run=1, g=2, at=1.0)),
        ),
    ),
)
