"""Checks of etcd: which servers answer, their versions, and the latency."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from elastic.core.kv import EndpointStatus, KeyRange
from elastic.errors import StoreDenied, StoreError
from elastic.store.etcd_releases import numbers
from elastic.store.protocol import Store
from launcher.system.checks import Check, fail, ok, warn

ASKED_TIMES = 5
SLOW_S = 0.1
"""A lease of 5 s tolerates this; a shorter one may not."""
VERSION_MIN = (3, 4, 0)
SOUND = {(3, 5): 23, (3, 6): 5}
"""The first patch release that fixes the known inconsistencies of a minor version."""


async def etcd_checks(store: Store, servers: Sequence[str], key: str) -> list[Check]:
    """Read `key` from etcd `ASKED_TIMES` times, and ask every server for its version."""
    named = ", ".join(servers)
    try:
        times = [await _time(store, key) for _ in range(ASKED_TIMES)]
    except StoreDenied as error:
        return [
            fail(
                "etcd",
                f"{named} refuses access ({error})",
                "check the address, certificates, user, password and permissions",
            )
        ]
    except StoreError as error:
        return [fail("etcd", f"{named} does not answer ({error})", "is it running, and is its port open?")]
    checks = [latency_check(times)]
    try:
        statuses = await store.statuses()
    except StoreError as error:
        return [*checks, warn("etcd's servers", f"cannot read their versions ({error})")]
    return [*checks, *server_checks(statuses, servers)]


async def _time(store: Store, key: str) -> float:
    began = time.monotonic()
    await store.list(KeyRange.key(key), keys_only=True)
    return time.monotonic() - began


def latency_check(times: Sequence[float]) -> Check:
    """Check how long a request takes. The first request also connects, and counts like the others."""
    middle, worst = statistics.median(times), max(times)
    text = f"answers in {1000 * middle:.1f} ms (the slowest of {len(times)} in {1000 * worst:.1f} ms)"
    if middle > SLOW_S:
        return warn("etcd", text, "it is far away or busy; a longer --lease-ttl tolerates more latency")
    return ok("etcd", text)


def server_checks(statuses: Sequence[EndpointStatus], servers: Sequence[str]) -> list[Check]:
    """Check which of the given servers answer, and whether their versions are supported."""
    answering = {status.endpoint for status in statuses}
    silent = [server for server in servers if server not in answering]
    about = tuple(f"{status.endpoint}: {status.version}{', leader' if status.leader else ''}" for status in statuses)
    text = f"{len(answering)} of {len(servers)} answer ({'; '.join(about)})"
    name = "etcd's servers"
    checks = (
        [warn(name, f"{text}, not {', '.join(silent)}", "a job needs only one, but the others are its replacement")]
        if silent
        else []
    )
    for status in statuses:
        version = numbers(status.version)
        if version < VERSION_MIN:
            checks.append(fail(name, f"{status.endpoint} is etcd {status.version}", "use 3.4 or later"))
        elif len(version) == 3 and version[2] < SOUND.get(version[:2], 0):
            best = f"{version[0]}.{version[1]}.{SOUND[version[0], version[1]]}"
            hint = f"for production use {best} or later: older releases can crash or become inconsistent"
            checks.append(warn(name, f"{status.endpoint} is etcd {status.version}", hint))
    return checks or [ok(name, text)]
