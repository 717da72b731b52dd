"""What must be true of every fuzzed run, judged by what its replicas wrote down (pure)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic.testing import Failure, Planned
from elastic.testing.schedule import failed_nodes, memberships
from tests.fuzz.training.plan import Plan

APART_MAX = 1e-9


@dataclass(slots=True)
class Rank:
    """What one replica wrote down. `start` None: it never came so far."""

    start: int | None = None
    known: int = -1
    """The newest checkpoint that the job knew of when it started."""
    takes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """The samples of each step, with their epoch."""
    kept: int = -1
    left: bool = False
    torn: str = ""
    beside: int | None = None
    """How many steps the second state is ahead, as it was restored."""
    ended: int | None = None

    @property
    def last(self) -> int:
        """The highest step that it began."""
        return max(self.takes, default=self.start or 0)


def read(lines: Sequence[str]) -> Rank:
    """One replica's diary. The last line may be cut off."""
    rank = Rank()
    for line in lines:
        try:
            what, *rest = json.loads(line)
        except ValueError:
            break
        if what == "start":
            rank.start = rank.kept = rest[0]
            rank.known = json.loads(rest[3])["step"] if rest[3] else -1
        elif what == "take":
            epoch, step, ids = rest
            rank.takes.setdefault(step, []).extend((epoch, one) for one in ids)
        elif what == "kept":
            rank.kept = rest[0]
        elif what == "torn":
            rank.torn = f"step {rest[0]} has numbers of {rest[1]}"
        elif what == "beside":
            rank.beside = rest[0]
        elif what == "left":
            rank.left = True
        else:
            rank.ended = rest[0]
    return rank


@dataclass(slots=True)
class Judge:
    """Goes through the worlds in order. `found` are the sentences that are not true."""

    plan: Plan
    worlds: Sequence[Sequence[Rank]]
    """The replicas of each world by rank, as many as were started."""
    found: list[str] = field(default_factory=list)
    _history: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """The samples of each step that counts so far."""
    _memory: dict[int, int] = field(default_factory=dict)
    """The step that each node has in memory at least."""
    _holders: frozenset[int] = frozenset()
    """The nodes among whom the shards lie."""
    _disk: dict[int, int] = field(default_factory=dict)
    """The step that each node has on disk at least; a shared folder is that of node -1."""
    _beside: int | None = None
    """How many steps the second state was ahead when all left in a planned stop; None after another end."""

    def run(self, values: Sequence[Any] | None, reference: Sequence[float]) -> list[str]:
        """All of it. `values` are what the last world returned, None if the run failed with an error that is right."""
        members = memberships(self.plan.worlds)
        for index, ranks in enumerate(self.worlds):
            self._start(index, ranks, members[index])
            self._end(index, ranks, members[index])
        if values is not None:
            self._samples()
            self._values(values, reference)
        return self.found

    def readable(self, index: int) -> int:
        """The newest step that world `index` can surely read, -1 if there is none."""
        members = memberships(self.plan.worlds)[index]
        disk = max((step for node, step in self._disk.items() if node in members or node < 0), default=-1)
        return max(disk, self._in_memory(members))

    def _in_memory(self, members: Sequence[int]) -> int:
        if self.plan.training.mode == "fsdp":
            gone = self._holders - set(members)
            copies = min(self.plan.training.copies, len(self._holders) - 1)
            if len(gone) > copies:
                return -1
        return max((self._memory[node] for node in members if node in self._memory), default=-1)

    def _start(self, index: int, ranks: Sequence[Rank], members: Sequence[int]) -> None:
        starts = {rank: one.start for rank, one in enumerate(ranks) if one.start is not None}
        if len(set(starts.values())) > 1:
            self._say(index, f"the ranks start at different steps: {starts}")
        if not starts:
            return
        start = next(iter(starts.values()))
        assert start is not None
        for one in ranks:
            if one.torn:
                self._say(index, f"what was restored is not whole: {one.torn}")
        beside = {one.beside for one in ranks if one.start is not None}
        if len(beside) > 1 or (self._beside is not None and beside != {self._beside}):
            self._say(index, f"the second state is {beside} steps ahead, and before the stop it was {self._beside}")
        least = self.readable(index)
        known = max(one.known for one in ranks)
        if start < least:
            self._say(index, f"it starts at step {start}, but step {least} could be read")
        if start < known:
            self._say(index, f"it starts at step {start}, but the job knew that step {known} is saved")
        missing = [step for step in range(1, start + 1) if step not in self._history]
        if missing:
            self._say(index, f"it starts at step {start}, but nobody did the steps {missing}")
        for step in [step for step in self._history if step > start]:
            del self._history[step]

    def _end(self, index: int, ranks: Sequence[Rank], members: Sequence[int]) -> None:
        solo = self.plan.training.mode == "solo"
        for rank in ranks:
            for step, samples in rank.takes.items():
                before = self._history.setdefault(step, [])
                before += samples[len(before) :] if solo else samples
        until, wish = self.plan.worlds[index].until, self.plan.training
        started = [rank for rank in ranks if rank.start is not None]
        disk_of = -1 if self.plan.shared else members[0]
        self._beside = None
        if len(started) == len(ranks):
            done = min(rank.kept for rank in ranks)
            start = started[0].start or 0
            if wish.memory_every is not None and (step := done - done % wish.memory_every) > start:
                self._remember(step, members)
            if wish.every is not None and (step := done - done % wish.every - wish.every) > start:
                self._disk[disk_of] = step
            if isinstance(until, Planned) and (ranks[0].left or all(rank.left for rank in ranks)):
                if len({rank.last for rank in ranks if rank.left}) > 1:
                    self._say(index, f"the ranks leave at different steps: {[rank.last for rank in ranks]}")
                self._disk[disk_of] = ranks[0].last
                self._beside = ranks[0].beside
                if wish.memory_every is not None:
                    self._remember(ranks[0].last, members)
        for place in failed_nodes(self.plan.worlds, index):
            self._memory.pop(members[place], None)
        if isinstance(until, Planned | Failure) and index + 1 < len(self.plan.worlds):
            after = memberships(self.plan.worlds)[index + 1]
            for node in set(members) - set(after):
                self._memory.pop(node, None)

    def _remember(self, step: int, members: Sequence[int]) -> None:
        self._memory = dict.fromkeys(members, step)
        self._holders = frozenset(members)

    def _samples(self) -> None:
        """Each sample of each epoch is used once."""
        end = self.worlds[-1][0].ended
        if end is None:
            return
        counts: dict[int, Counter[int]] = {}
        for step, samples in self._history.items():
            if step <= end:
                for epoch, sample in samples:
                    counts.setdefault(epoch, Counter())[sample] += 1
        once = Counter(range(self.plan.training.samples))
        for epoch in range(self.plan.training.epochs):
            if (seen := counts.get(epoch, Counter())) != once:
                wrong = {sample: seen[sample] for sample in sorted(seen | once) if seen[sample] != 1}
                self.found.append(f"epoch {epoch} uses samples so many times instead of once: {wrong}")

    def _values(self, values: Sequence[Any], reference: Sequence[float]) -> None:
        if any(value is None for value in values):
            self.found.append(f"not every rank returns its parameters: {[value is not None for value in values]}")
            return
        if self.plan.training.total is None:
            reference = values[0]
        for rank, value in enumerate(values):
            apart = max(abs(one - other) for one, other in zip(value, reference, strict=True))
            if not apart <= APART_MAX:
                self.found.append(f"rank {rank} ends {apart:.1e} from the undisturbed run")

    def _say(self, index: int, what: str) -> None:
        self.found.append(f"world {index}: {what}")


def number(name: str) -> tuple[int, int]:
    """Generation and rank of a diary, by its name."""
    generation, _, rank = name.partition(".")
    return int(generation[1:]), int(rank[1:])
