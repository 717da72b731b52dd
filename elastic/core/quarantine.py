"""Which host is to blame for failures, and for how long it is quarantined (pure).

A machine can be broken in a way that only its workers see: a full disk, a GPU that fell off, too little memory. Each
generation with it fails, and no restart fixes that. So failures in a row are counted by host; progress ends a row.

- A host whose workers failed by themselves `QUARANTINE_AFTER` times in a row, while those of most hosts did not, is
  quarantined, if enough others are there (np's MIN). After `--host_cooldown` it may join like any other. If it fails
  again before it took part in any progress, one failure is enough, and the time doubles.
- A script whose rank 0 fails looks like a broken host, too, until it fails on another one. So at most one of
  `BLAMED_ONE_OF` hosts is blamed in a row (one of two, one alone); with more it is the script's fault, and who is
  quarantined because of this row comes back.
- A host that others do not reach (`elastic.core.partition`) is quarantined at once. It does not join while the leader
  does not reach it either. Its workers have not failed with that: two failures are needed as before.

A failure costs the job a restart whether a host is to blame or not.

A host is what the members say of themselves, not a node: a node that was started again is still on it, and several
nodes on one machine share its disk, its memory and its GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from elastic.core.failure_class import FailureClass
from elastic.core.model import Budget, Outcome, Quarantine
from elastic.core.view import StoreView

QUARANTINE_AFTER = 2
"""Failures of a host, without progress of the job between them, after which it is quarantined. One may be anything.
With the default of three restarts, one is left when a host is seen to be broken."""
QUARANTINE_MAX_S = 1800.0
"""What costs a running job a restart each time may not come often; a host that was mended is missed for this long.
A longer `--host_cooldown` does not double."""
BLAMED_ONE_OF = 3
HOSTS_MAX = 16
"""So many hosts are remembered. One less can be blamed in a row, however large the job is."""
UNREACHABLE_MAX = 496
"""So many hosts that others do not reach are left out at once, and remembered besides. One that is forgotten comes back
at once: of a rack that is cut off all must be remembered."""
NAMED_MAX = 4
"""More hosts that are kept out are counted and not named."""
WORDS_MAX = 200
HOST_MAX = 253
NOT_THE_HOST = (FailureClass.SECONDARY, FailureClass.RESTART_REQUESTED)
"""Failures that say nothing of the host."""

QuarantineDeadlines = Mapping[tuple[str, int], float]
"""Until when hosts are quarantined on a reader's clock, by host and by the generation whose failure did it."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What a failure says of hosts: all that are remembered, and the `suspects`, which should be quarantined."""

    hosts: tuple[Quarantine, ...]
    suspects: tuple[str, ...] = ()


def reset_failures(hosts: Iterable[Quarantine], outcomes: Iterable[Outcome]) -> tuple[Quarantine, ...]:
    """A new row begins. A host that took part in the progress and did not fail is like any other again."""
    failed = failed_by_themselves(outcomes)
    proven = {outcome.host for outcome in outcomes} - set(failed)
    kept = [entry for entry in hosts if entry.times and (entry.left_s > 0 or entry.host not in proven)]
    return tuple(replace(entry, failures=0) for entry in kept)


def failed_by_themselves(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """The hosts with workers that failed by themselves, and how the first of them ended."""
    found: dict[str, str] = {}
    for outcome in outcomes:
        own = [worker for worker in outcome.exits if worker.code and worker.failure not in NOT_THE_HOST]
        if own and 0 < len(outcome.host) <= HOST_MAX:
            first = own[0]
            found.setdefault(outcome.host, (first.why if first.failure.of_machine else first.words)[:WORDS_MAX])
    return found


def blame(hosts: Iterable[Quarantine], outcomes: Collection[Outcome]) -> Blame:
    """Count a failure that follows no progress, or begins a new row."""
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
    """One failure more. That others did not reach the host says nothing of its workers, and counts for them no more."""
    if entry.unreachable and entry.left_s > 0:
        return replace(entry, failures=entry.failures + 1)
    times = 0 if entry.unreachable else entry.times
    return replace(entry, failures=entry.failures + 1, words=words, times=times, unreachable=False)


def _released(entry: Quarantine) -> Quarantine:
    """A host whose quarantine for its failures, if it is in one, was a mistake."""
    mistaken = entry.left_s > 0 and not entry.unreachable
    return replace(entry, left_s=0.0, times=max(entry.times - 1, 0)) if mistaken else entry


def quarantine(
    hosts: Iterable[Quarantine], suspects: Collection[str], g: int, first_s: float
) -> tuple[Quarantine, ...]:
    """The hosts with these quarantined because of generation `g`: for `first_s`, twice as long each further time."""
    longest_s = max(first_s, QUARANTINE_MAX_S)
    return tuple(
        replace(entry, times=entry.times + 1, g=g, left_s=min(first_s * 2.0 ** min(entry.times, 16), longest_s))
        if entry.host in suspects
        else entry
        for entry in hosts
    )


def with_unreachable(hosts: Iterable[Quarantine], out: Mapping[str, str]) -> tuple[Quarantine, ...]:
    """The hosts with these, that others do not reach, each with the words that say who."""
    known = {entry.host: entry for entry in hosts}
    new = [
        replace(known.pop(host, Quarantine(host)), words=text[:WORDS_MAX], unreachable=True)
        for host, text in list(out.items())[:UNREACHABLE_MAX]
    ]
    return newest([*known.values(), *new])


def quarantine_deadlines(view: StoreView, deadlines: QuarantineDeadlines, now: float) -> QuarantineDeadlines:
    """Until when hosts are kept out, counted from the moment at which this reader first saw it."""
    hosts = view.budget.hosts
    if not hosts and not deadlines:
        return deadlines
    return {(one.host, one.g): deadlines.get((one.host, one.g), now + one.left_s) for one in hosts if one.left_s > 0}


def count_down(budget: Budget, deadlines: QuarantineDeadlines, now: float, inside: Collection[str] = ()) -> Budget:
    """The budget with what is left of each quarantine by now; a host with a member inside is released."""
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
    """Why a host is kept out: "its workers failed 2 times in a row (address in use)"."""
    if one.unreachable:
        return one.words
    if one.failures > 1:
        return f"its workers failed {one.failures} times in a row ({one.words})"
    return f"its workers failed again ({one.words})"


def quarantine_summary(texts: Sequence[str], between: str = "; ") -> str:
    """What is to be said of hosts that are kept out; of many only how many there are."""
    more = len(texts) - NAMED_MAX
    shown = between.join(texts[:NAMED_MAX])
    return shown if more <= 0 else f"{shown}{between}{more} more {'is' if more == 1 else 'are'} kept out"


def newest(hosts: Iterable[Quarantine]) -> tuple[Quarantine, ...]:
    """The newest of the row, then of those that were kept out, in their order; with those that others do not reach.

    One that was forgotten could join at once.
    """
    found = tuple(hosts)
    weighed = sorted((one for one in found if not one.unreachable), key=lambda one: (one.failures > 0, one.times > 0))
    return (*weighed[-HOSTS_MAX:], *[one for one in found if one.unreachable][-UNREACHABLE_MAX:])
