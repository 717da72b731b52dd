"""Which host is to blame for failures, and for how long it is quarantined (pure).

A host can be broken in a way that only its workers notice: a full disk, a GPU that fell off the bus, too little memory.
Each generation with this host fails, and no restart fixes that. The leader therefore counts failures in a row by host;
progress ends a row.

- A host is quarantined if its workers failed on their own `QUARANTINE_AFTER` times in a row while those of most hosts
  did not, and if enough other nodes are here (np's MIN). After `--host-cooldown` it may join like any other host. If it
  fails again before it has taken part in any progress, one failure is enough, and the time doubles.
- A script whose rank 0 fails also looks like a broken host, until it fails on another host. At most one in
  `BLAMED_ONE_OF` hosts is therefore blamed in a row (one of two, or a single one). With more it is the script's fault,
  and hosts that are quarantined because of this row are released.
- A host that others cannot reach (`elastic.core.partition`) is quarantined at once, and does not join while the leader
  cannot reach it either. This does not count as a failure of its workers: two of those are needed as before.

A failure costs the job a restart whether a host is to blame or not.

Failures are counted by the host that members register, not by node: a node that restarts is still on the same host, and
several nodes on one host share its disk, memory and GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from elastic.core.failure_class import FailureClass
from elastic.core.model import Budget, Outcome, Quarantine
from elastic.core.view import StoreView

QUARANTINE_AFTER = 2
"""Failures of a host, without progress of the job between them, after which it is quarantined. A single failure can
have any cause. With the default of three restarts, one is left when a host proves to be broken."""
QUARANTINE_MAX_S = 1800.0
"""Longest quarantine after doubling. Each attempt costs a running job a restart, so attempts must be rare; a host that
was repaired is missed for up to this time. A longer `--host-cooldown` does not double."""
BLAMED_ONE_OF = 3
HOSTS_MAX = 16
"""Hosts that are remembered. One less can be blamed in a row, however large the job is."""
UNREACHABLE_MAX = 496
"""Unreachable hosts that are left out at once, and remembered in addition to `HOSTS_MAX`. A host that is forgotten
rejoins at once, so all hosts of a rack that is cut off must fit."""
NAMED_MAX = 4
"""Quarantined hosts that a sentence lists; further ones are counted."""
WORDS_MAX = 200
HOST_MAX = 253
NOT_THE_HOST = (FailureClass.SECONDARY, FailureClass.RESTART_REQUESTED)
"""Failures that say nothing about the host."""

QuarantineDeadlines = Mapping[tuple[str, int], float]
"""Until when hosts are quarantined on a reader's clock, by host and by the generation whose failure caused it."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The result of a failure for hosts: all that are remembered, and the `suspects`, which should be quarantined."""

    hosts: tuple[Quarantine, ...]
    suspects: tuple[str, ...] = ()


def reset_failures(hosts: Iterable[Quarantine], outcomes: Iterable[Outcome]) -> tuple[Quarantine, ...]:
    """Start a new row after progress, and forget hosts that took part in the progress without failing."""
    failed = failed_by_themselves(outcomes)
    proven = {outcome.host for outcome in outcomes} - set(failed)
    kept = [entry for entry in hosts if entry.times and (entry.left_s > 0 or entry.host not in proven)]
    return tuple(replace(entry, failures=0) for entry in kept)


def failed_by_themselves(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """The hosts with workers that failed on their own, and how the first of them ended."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        own = [worker for worker in outcome.exits if worker.code and worker.failure not in NOT_THE_HOST]
        if own and 0 < len(outcome.host) <= HOST_MAX:
            first = own[0]
            found.setdefault(outcome.host, (first.why if first.failure.of_machine else first.words)[:WORDS_MAX])
    return found


def blame(hosts: Iterable[Quarantine], outcomes: Collection[Outcome]) -> Blame:
    """Count a failure by host, and return which hosts to suspect."""
    failed = failed_by_themselves(outcomes)
    known = {entry.host: entry for entry in hosts}
    for host, words in failed.items():
        known[host] = _with_failure(known.pop(host, Quarantine(host)), words)  # The newest come last.
    in_row = [entry for entry in known.values() if entry.failures]
    hosts_in_all = {outcome.host for outcome in outcomes}.union(entry.host for entry in in_row)
    if len(in_row) > min(max(len(hosts_in_all) // BLAMED_ONE_OF, 1), HOSTS_MAX - 1):
        known.update((entry.host, _released(entry)) for entry in in_row)
        return Blame(newest(known.values()))
    suspects = [
        entry.host
        for entry in in_row
        if entry.host in failed and (entry.failures >= QUARANTINE_AFTER or (entry.times and not entry.unreachable))
    ]
    return Blame(newest(known.values()), tuple(sorted(suspects)))


def _with_failure(entry: Quarantine, words: str) -> Quarantine:
    """Add one failure. An earlier quarantine as unreachable says nothing about its workers and does not count."""
    if entry.unreachable and entry.left_s > 0:
        return replace(entry, failures=entry.failures + 1)
    times = 0 if entry.unreachable else entry.times
    return replace(entry, failures=entry.failures + 1, words=words, times=times, unreachable=False)


def _released(entry: Quarantine) -> Quarantine:
    """Release a host from a quarantine that its failures caused by mistake."""
    mistaken = entry.left_s > 0 and not entry.unreachable
    return replace(entry, left_s=0.0, times=max(entry.times - 1, 0)) if mistaken else entry


def quarantine(
    hosts: Iterable[Quarantine], suspects: Collection[str], g: int, first_s: float
) -> tuple[Quarantine, ...]:
    """Quarantine the suspects because of generation `g`: for `first_s`, and twice as long each further time."""
    longest_s = max(first_s, QUARANTINE_MAX_S)
    return tuple(
        replace(entry, times=entry.times + 1, g=g, left_s=min(first_s * 2.0 ** min(entry.times, 16), longest_s))
        if entry.host in suspects
        else entry
        for entry in hosts
    )


def with_unreachable(hosts: Iterable[Quarantine], out: Mapping[str, str]) -> tuple[Quarantine, ...]:
    """Add the unreachable hosts `out`, each with the text that says which hosts cannot reach it."""
    known = {entry.host: entry for entry in hosts}
    new = [
        replace(known.pop(host, Quarantine(host)), words=text[:WORDS_MAX], unreachable=True)
        for host, text in list(out.items())[:UNREACHABLE_MAX]
    ]
    return newest([*known.values(), *new])


def quarantine_deadlines(view: StoreView, deadlines: QuarantineDeadlines, now: float) -> QuarantineDeadlines:
    """Until when hosts are quarantined, counted from when this reader first saw the quarantine."""
    hosts = view.budget.hosts
    if not hosts and not deadlines:
        return deadlines
    return {(one.host, one.g): deadlines.get((one.host, one.g), now + one.left_s) for one in hosts if one.left_s > 0}


def count_down(budget: Budget, deadlines: QuarantineDeadlines, now: float, inside: Collection[str] = ()) -> Budget:
    """The budget with the seconds that are left of each quarantine; hosts `inside` the generation are released."""
    if not budget.hosts:
        return budget
    left = {entry.host: deadlines.get((entry.host, entry.g), now + entry.left_s) - now for entry in budget.hosts}
    hosts = tuple(
        replace(entry, left_s=0.0 if entry.host in inside else round(max(left[entry.host], 0.0), 3))
        if entry.left_s > 0
        else entry
        for entry in budget.hosts
    )
    return replace(budget, hosts=hosts)


def reason_text(one: Quarantine) -> str:
    """Why a host is quarantined: "its workers failed 2 times in a row (address in use)"."""
    if one.unreachable:
        return one.words
    if one.failures > 1:
        return f"its workers failed {one.failures} times in a row ({one.words})"
    return f"its workers failed again ({one.words})"


def quarantine_summary(texts: Sequence[str], between: str = "; ") -> str:
    """Join the texts about quarantined hosts; beyond `NAMED_MAX` only their number."""
    more = len(texts) - NAMED_MAX
    shown = between.join(texts[:NAMED_MAX])
    return shown if more <= 0 else f"{shown}{between}{more} more {'is' if more == 1 else 'are'} quarantined"


def newest(hosts: Iterable[Quarantine]) -> tuple[Quarantine, ...]:
    """The hosts to remember: those with failures in this row first, then those quarantined before; the newest of each.

    Unreachable hosts are counted separately, because a forgotten one could join at once.
    """
    found = tuple(hosts)
    weighed = sorted((one for one in found if not one.unreachable), key=lambda one: (one.failures > 0, one.times > 0))
    return (*weighed[-HOSTS_MAX:], *[one for one in found if one.unreachable][-UNREACHABLE_MAX:])
