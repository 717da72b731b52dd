"""An epoch served under a schedule of world changes, as a job would live it, but with all ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from elastic.train.data.sampler import ElasticSampler
from elastic.train.data.stream import ElasticStream

Source = ElasticSampler | ElasticStream


@dataclass(frozen=True)
class Phase:
    """One world: it commits `steps` steps, then every rank takes up to `lost` batches more that nobody commits."""

    world: int
    steps: int
    lost: int


PHASES = st.lists(
    st.builds(Phase, world=st.integers(1, 5), steps=st.integers(0, 4), lost=st.integers(0, 3)), min_size=1, max_size=6
)


@dataclass(frozen=True)
class Served:
    """What was committed: for each global step the real samples, by rank and micro-batch in their order."""

    steps: list[list[int]]
    phases: int

    @property
    def samples(self) -> list[int]:
        return [sample for step in self.steps for sample in step]


def served(phases: Sequence[Phase], make: Callable[[int, int], tuple[Source, Iterable[Any]]], epoch: int = 0) -> Served:
    """Serve one epoch; when the phases are over, its rest in the last one's world.

    `make(rank, world)` returns the sampler or stream and what the loop is over, of a process that has just started.
    Along the way it checks that all ranks have the same batches at the same time, and that weights add up.
    """
    steps: list[list[int]] = []
    saved: dict[str, Any] | None = None
    for number, phase in enumerate([*phases, Phase(phases[-1].world, 1_000_000, 0)]):
        ranks = [make(rank, phase.world) for rank in range(phase.world)]
        for source, _ in ranks:
            source.set_epoch(epoch)
            if saved is not None:
                source.load_state_dict(saved)
        loops = [(source, iter(loader)) for source, loader in ranks]
        for _ in range(phase.steps):
            step = one_step(loops)
            if step is None:
                assert all(source.finished for source, _ in loops)
                return Served(steps, number)
            steps.append(step)
            states = [source.state_dict() for source, _ in loops]
            assert all(state == states[0] for state in states)
            assert states[0]["consumed"] == sum(map(len, steps))
            saved = states[0]
        for _ in range(phase.lost):
            for _, loop in loops:
                next(loop, None)
    raise AssertionError("the epoch never ended")


def one_step(loops: Sequence[tuple[Source, Any]]) -> list[int] | None:
    """The real samples of the next global step; None if no rank has another batch."""
    found: list[int] = []
    counts, weights, before = set(), 0.0, loops[0][0].consumed
    for source, loop in loops:
        count, last = 0, False
        while not last:
            batch = next(loop, None)
            if batch is None:
                assert not count
                break
            assert source.consumed == before or source.is_last_micro_batch
            count, last = count + 1, source.is_last_micro_batch
            found += torch.as_tensor(batch).reshape(-1).tolist()[: source.samples]
            weights += source.weight
        counts.add(count)
    assert len(counts) == 1, "the ranks do not make the same number of batches"
    if counts == {0}:
        return None
    assert abs(weights - len(loops)) < 1e-9
    return found
