"""What the bench of leaks looks at after each change, and when a quantity counts as flat."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.bench.idle import pss_mb
from tests.support.awaited_events import marked

OWN_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs shm /dev/shm && exec "$@"', "sh")
"""What runs a command with a /dev/shm of its own, so that nothing of other programs is counted. It needs root."""
METRICS = {
    "etcd watchers": "etcd_debugging_mvcc_watcher_total",
    "etcd keys": "etcd_debugging_mvcc_keys_total",
    "etcd in use, MB": "etcd_mvcc_db_total_size_in_use_in_bytes",
}


@dataclass(frozen=True)
class Bound:
    """When a quantity is flat: it grows by at most `slack` between the second and the last fifth of the changes.

    None: it is shown, and nothing is expected of it.
    """

    slack: float | None


BOUNDS: tuple[tuple[str, Bound], ...] = (
    ("RSS, MB", Bound(3.0)),
    ("PSS, MB", Bound(None)),
    ("CPU, s", Bound(None)),
    ("in use, MB", Bound(0.5)),
    ("log bytes", Bound(None)),
    ("lock files", Bound(None)),
    ("etcd revision", Bound(None)),
    ("", Bound(1.0)),
)
"""By the end of the quantity's name. A count moves by one where a sample was taken in the middle of something.

What a process shares (PSS) depends on who else on the machine has loaded torch. Logs of workers are the user's; the
agents' own files are renamed when they are full. A node that is killed leaves its lock behind, as the proof of its
death: `locks.FREE_MAX` of them are kept.
"""


FILLED_AT = 300
"""Changes after which the history of the job and the lists of endpoints have their full length in the second fifth."""
FILLING = ("etcd keys", "log files")


def bound_of(name: str, changes: int) -> Bound:
    """What is expected of a quantity after so many changes."""
    if name in FILLING and changes < FILLED_AT:
        return Bound(None)
    return next(bound for end, bound in BOUNDS if name.endswith(end))


def of_process(process: psutil.Process, name: str) -> dict[str, float]:
    """Descriptors by kind, memory, threads, children and zombies of one process."""
    found = {f"{name} {kind}": float(count) for kind, count in descriptors(process.pid).items()}
    children = process.children()
    zombies = [child for child in children if _status(child) == psutil.STATUS_ZOMBIE]
    found[f"{name} threads"] = float(process.num_threads())
    found[f"{name} children"] = float(len(children))
    found[f"{name} zombies"] = float(len(zombies))
    found[f"{name} RSS, MB"] = process.memory_info().rss / 1e6
    found[f"{name} PSS, MB"] = pss_mb(process)
    return found


def descriptors(pid: int) -> Counter[str]:
    """Open descriptors of a process by kind, and in all."""
    kinds: Counter[str] = Counter({"descriptors": 0, "sockets": 0, "pipes": 0, "files": 0, "shared memory": 0})
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(fd)
            kinds["descriptors"] += 1
            if target.startswith("socket:"):
                kinds["sockets"] += 1
            elif target.startswith("pipe:"):
                kinds["pipes"] += 1
            elif target.startswith(("/memfd:", "/dev/shm")):
                kinds["shared memory"] += 1
            elif target.startswith("/"):
                kinds["files"] += 1
    return kinds


def shm_of(pid: int) -> list[str]:
    """What has a name in the shared memory that a process sees, which may be one of its own (`OWN_SHM`)."""
    return os.listdir(f"/proc/{pid}/root/dev/shm")


def of_machine(mark: str, tmp: Path, logs: Path) -> dict[str, float]:
    """Processes that carry the job's mark, its temporary files and locks, and its log folder."""
    files = [path for path in logs.iterdir() if path.is_file()]
    entries = [path.name for path in tmp.iterdir()]
    locks = list(tmp.glob("elastic-launch-*/*.lock"))
    return {
        "processes": float(len(marked(mark))),
        "temporary entries": float(len(entries)),
        "lock files": float(len(locks)),
        "log files": float(len(files)),
        "log bytes": float(sum(path.stat().st_size for path in files)),
    }


def of_etcd(endpoint: str) -> dict[str, float]:
    """Compact etcd to now, as its own compaction does later, and read its counters."""
    answer = _post(endpoint, "kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
    revision = answer["header"]["revision"]
    with contextlib.suppress(OSError):  # It was compacted to this revision before.
        _post(endpoint, "kv/compaction", {"revision": revision, "physical": True})
    leases = _post(endpoint, "lease/leases", {}).get("leases", [])
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as metrics:
        text = metrics.read().decode()
    found = {name: counter(text, metric) for name, metric in METRICS.items()}
    found["etcd in use, MB"] /= 1e6
    return found | {"etcd leases": float(len(leases)), "etcd revision": float(revision)}


def counter(text: str, name: str) -> float:
    """A counter of etcd's metrics, 0 if it has none of that name."""
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M)
    return float(found[1]) if found else 0.0


def _post(endpoint: str, what: str, body: Mapping[str, object]) -> dict[str, Any]:
    request = urllib.request.Request(f"http://{endpoint}/v3/{what}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return dict(json.load(answer))


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return ""


@dataclass(frozen=True)
class Row:
    """One quantity over all changes."""

    name: str
    shown: tuple[float, ...]
    grew: float
    bound: Bound

    @property
    def flat(self) -> bool | None:
        """Whether it did not grow; None where nothing is expected."""
        return None if self.bound.slack is None else self.grew <= self.bound.slack


def rows(samples: Sequence[Mapping[str, float]], every: int) -> list[Row]:
    """Each quantity after the first change and after every `every`; how much the last fifth is above the second.

    The first fifth is left out: until then the history of the job (`history.KEPT`) and lists of endpoints are filled.
    """
    count = len(samples)
    begin = fifth = max(count // 5, 2)
    found = []
    for name in dict.fromkeys(name for sample in samples for name in sample):
        values = [sample[name] for sample in samples if name in sample]
        early, late = statistics.median(values[begin : begin + fifth]), statistics.median(values[-fifth:])
        shown = tuple(values[at] for at in (0, *range(every - 1, len(values), every)))
        found.append(Row(name, shown, late - early, bound_of(name, count)))
    return found


def table(found: Iterable[Row], every: int) -> list[str]:
    """The rows as text."""
    found = list(found)
    count = max(len(row.shown) for row in found)
    heads = ["first", *(str(every * number) for number in range(1, count))]
    lines = [f"{'after change':32}" + "".join(f"{head:>11}" for head in heads) + f"{'grew':>11}"]
    for row in found:
        verdict = {True: "flat", False: "LEAKS", None: "-"}[row.flat]
        cells = "".join(f"{value:11.6g}" for value in row.shown)
        lines.append(f"{row.name:32}{cells}{row.grew:11.4g}  {verdict}")
    return lines
