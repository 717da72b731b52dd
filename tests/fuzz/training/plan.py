"""What a seed stands for: a schedule of worlds with faults, and how the replicas train (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from elastic.testing import End, Failure, NodeFailure, Planned, World
from elastic.testing.schedule import Until

Mode = Literal["ddp", "manual", "fsdp", "solo", "none"]
"""How ranks share a step: DDP, gradients added by hand, FSDP2, each does all of it alone, a world of one."""

PLACES: Final = {
    "start": (
        "elastic.train.process_group.rendezvous:Rendezvous.meet",
        "elastic.train.process_group.rendezvous:Rendezvous._gather",
    ),
    "restore": (
        "elastic.train.restore.restorer:Restorer.run",
        "elastic.train.restore.restorer:Restorer._scan_checkpoints",
        "elastic.train.restore.restorer:Restorer._from_memory",
        "elastic.train.restore.restorer:Restorer._from_disk",
        "elastic.train.restore.restorer:Restorer.ready",
        "elastic.train.memory.tier:MemoryTier.choose",
        "elastic.train.memory.transfer:fetch",
        "elastic.train.resume:_take_over",
    ),
    "commit": (
        "elastic.train.commit:Committer._keep",
        "elastic.train.memory.tier:MemoryTier.commit",
        "elastic.train.memory.tier:MemoryTier._drop_old",
        "elastic.train.memory.slot:Slot.write",
        "elastic.train.memory.slot:Slot.write",
        "elastic.train.memory.slot:Slot.clear",
        "elastic.train.memory.slot:Slot.finish",
        "elastic.train.memory.double_buffer:DoubleBuffer.make_room",
        "elastic.train.memory.peer_copy:PeerReplicator.copy",
    ),
    "save": (
        "elastic.train.checkpoint.async_saver:AsyncSaver._run",
        "elastic.train.checkpoint:Checkpoints.stage",
        "elastic.train.checkpoint:Checkpoints.publish",
        "elastic.train.checkpoint:Checkpoints._prune",
        "elastic.train.checkpoint:Checkpoints._report",
        "elastic.train.checkpoint.atomic_files:write",
        "elastic.train.checkpoint.atomic_files:publish",
        "elastic.train.checkpoint.atomic_files:discard",
    ),
    "copy": ("elastic.train.memory.slot:Slot.write",),
    "leave": (
        "elastic.train.planned_stop:StopParticipant.agreed",
        "elastic.train.planned_stop:StopParticipant.leave",
        "elastic.train.process_group.stop_agreement:StopBoard.run",
        "elastic.train.process_group.stop_agreement:StopBoard.leave",
    ),
}
"""Where a replica may be killed, besides at any moment of a step."""
KINDS: Final = ("start", "restore", "commit", "commit", "save", "step")
AFTER_RETURN: Final = -1
RAISE: Final = -2
KILLS_US: Final = (RAISE, AFTER_RETURN, 0, 30, 100, 400, 1500, 6000, 30000)


@dataclass(frozen=True, slots=True)
class Strike:
    """One replica's end by its own hand: `after_us` after the `nth` call of `place`, or after step `at` began.

    `AFTER_RETURN`: when that call returns. `RAISE`: it is not killed, but raises there. A place that is never come to
    leaves the step.
    """

    rank: int
    at: int
    after_us: int
    place: str = ""
    nth: int = 1


@dataclass(frozen=True, slots=True)
class Training:
    """How every replica trains."""

    mode: Mode
    samples: int
    epochs: int
    total: int | None
    per_rank: int
    most: int | None
    every: int | None
    memory_every: int | None
    stream: bool
    workers: int
    adam: bool
    exact: bool
    ballast: int
    """Numbers beside the parameters, all of them the number of the step: a copy that was cut off shows."""
    keep: int
    copies: int
    check_nan: bool
    late: int = 0
    """The first step in which the last layer takes part: until then its parameters have no gradients. 0: always."""
    beside: int = 0
    """Every so many steps a second state, in a folder of its own, goes to disk. 0: there is none."""

    @property
    def steps_min(self) -> int:
        """Fewest steps to the end, in any of the worlds that a plan has."""
        each = self.total if self.total is not None else self.per_rank * 8
        return self.epochs * max(1, -(-self.samples // each))


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a run."""

    seed: int
    training: Training
    worlds: tuple[World, ...]
    strikes: tuple[tuple[Strike, ...], ...]
    slots: int
    shared: bool

    def __str__(self) -> str:
        """Several lines for a person."""
        lines = [f"seed {self.seed}: slots {self.slots}, {'shared' if self.shared else 'not shared'}, {self.training}"]
        for index, (world, strikes) in enumerate(zip(self.worlds, self.strikes, strict=True)):
            lines.append(f"  world {index}: {world.nodes} nodes, {world.until} {' '.join(map(str, strikes))}")
        return "\n".join(lines)


def plan(seed: int) -> Plan:
    """The plan of a seed, always the same."""
    dice = random.Random(seed)
    training = _training(dice)
    more = random.Random(-1 - seed)  # Of its own, so that a seed keeps the schedule that it had before this was drawn.
    training = replace(training, late=more.choice((0, 0, 2, 5, 9)), beside=more.choice((0, 0, 0, 1, 4)))
    slots = 1 if training.mode == "none" else dice.choice((1, 1, 1, 2))
    nodes_max = 1 if training.mode == "none" else 4 if slots == 1 else 2
    changes = dice.randint(1, 5)
    made = _Worlds(
        dice, training, slots, nodes_max, dice.choice(("", "", "", "start", "restore", "copy", "save", "leave"))
    )
    nodes = dice.randint(1, nodes_max)
    for _ in range(changes):
        nodes = made.add(nodes)
    made.worlds.append(World(nodes, End()))
    made.strikes.append(())
    shared = training.mode == "fsdp" or dice.random() < 0.7
    if not shared:
        training = replace(training, beside=0)
    return Plan(seed, training, tuple(made.worlds), tuple(made.strikes), slots, shared)


def _training(dice: random.Random) -> Training:
    mode: Mode = dice.choice(("ddp", "ddp", "ddp", "manual", "manual", "fsdp", "fsdp", "solo", "none"))
    samples = dice.choice((1, 3, 17, 40, 64, 100, 150))
    total = dice.choice((None, 4, 7, 12, 16))
    per_rank = dice.choice((1, 2, 3))
    each = total if total is not None else per_rank * 8
    epochs = min(30, max(1, dice.randint(12, 40) * each // max(samples, each)))
    return Training(
        mode=mode,
        samples=samples,
        epochs=epochs,
        total=total,
        per_rank=per_rank,
        most=dice.choice((None, None, 1, 2, 3)) if total is not None else None,
        every=dice.choice((None, 1, 2, 3, 4, 5, 5)),
        memory_every=dice.choice((None, 1, 1, 1, 2, 3, 5)),
        stream=dice.random() < 0.3,
        workers=2 if dice.random() < 0.1 and epochs < 4 else 0,
        adam=dice.random() < 0.5,
        exact=dice.random() < 0.6,
        ballast=dice.choice((1, 1000, 400_000, 1_000_000)),
        keep=dice.choice((1, 2, 3)),
        copies=dice.choice((0, 1, 1, 1, 2)),
        check_nan=dice.random() < 0.2,
    )


@dataclass(slots=True)
class _Worlds:
    dice: random.Random
    training: Training
    slots: int
    nodes_max: int
    focus: str
    """The kind of place that all replicas of this plan die in, "" for any."""
    worlds: list[World] = field(default_factory=list)
    strikes: list[tuple[Strike, ...]] = field(default_factory=list)

    def add(self, nodes: int) -> int:
        """One more world with `nodes` nodes, and how many the next one has."""
        dice = self.dice
        at = dice.randint(1, max(1, self.training.steps_min - (1 if self.training.exact else 8)))
        gone = tuple(sorted(dice.sample(range(nodes), dice.randint(1, min(2, nodes)))))
        strikes: tuple[Strike, ...] = ()
        until: Until
        ends: tuple[str, ...] = (
            "planned",
            "planned",
            "loss",
            "failure",
            "dies",
            "dies",
            "dies",
            "lost",
            "lost",
            "leaves",
        )
        if self.focus:
            ends = ("leaves",) if self.focus == "leave" else ("dies", "lost")
        match dice.choice(ends):
            case "planned":
                until = Planned(at, leave=gone if dice.random() < 0.4 else ())
            case "loss":
                until = NodeFailure(at, nodes=gone)
            case "failure":
                until = Failure(at, rank=dice.randrange(nodes * self.slots), by=dice.choice(("raise", "kill")))
            case "dies":
                until, strikes = Failure(), self._strikes(nodes, at, KINDS)
            case "lost":
                until = NodeFailure(nodes=gone)
                strikes = self._strikes(nodes, at, KINDS, gone)
            case _:
                until = Planned(at, leave=gone if dice.random() < 0.5 else (), may_fail=True)
                strikes = self._strikes(nodes, 1 << 30, ("leave", "leave", "save"))
        self.worlds.append(World(nodes, until))
        self.strikes.append(strikes)
        return dice.randint(1, self.nodes_max)

    def _strikes(self, nodes: int, at: int, kinds: tuple[str, ...], of: tuple[int, ...] = ()) -> tuple[Strike, ...]:
        dice = self.dice
        ranks = [rank for rank in range(nodes * self.slots) if not of or rank // self.slots in of]
        found = []
        for rank in dice.sample(ranks, min(len(ranks), dice.choice((1, 1, 1, 2)))):
            kind = self.focus or dice.choice(kinds)
            if kind == "save":
                rank = 0 if not of or 0 in of else rank
            nth = dice.choice((1, 1, 2, 3, 5, 8)) if kind in ("commit", "copy", "save") else 1
            place = dice.choice(PLACES[kind]) if kind != "step" else ""
            after_us = dice.choice((*KILLS_US, dice.randrange(300), dice.randrange(2000)))
            if kind == "copy":
                after_us = dice.randrange(1500)
            if after_us == AFTER_RETURN and not place:
                after_us = 0
            found.append(Strike(rank, at, after_us, place, nth))
        return tuple({one.rank: one for one in found}.values())
