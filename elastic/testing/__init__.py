"""Runs a function as several replicas on one machine while the world changes, to test that training survives.

A complete test of a user's script, for pytest or anything else:

    import torch
    import elastic
    from elastic.testing import reached, record, run

    def train(steps: int) -> float:
        elastic.init()
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = elastic.State(model=model, optimizer=optimizer)
        state.restore()
        while state.step < steps:
            ...                                       # one step of training
            record(state.step)
            state.commit(every=10)
            reached(state.step)                       # optional: makes the steps below exact
        return model.bias.item()

    def test_training_survives_a_planned_change_and_a_loss(tmp_path):
        result = run(train, args=(40,), worlds=[3, 2, 1], change_at=[10, 20], how=["planned", "loss"],
                     checkpoint_dir=tmp_path)
        assert len(result.values) == 1                # what the last world's replicas returned
        assert result.worlds[0].replicas[0].code == 143

Each replica is a process with the environment that elastic-launch gives its workers, on gloo and the CPU. Three nodes
with one replica each are three agents as far as the library can tell: each has its own local channel and memory. Worlds
come one after the other; between two of them nodes leave as planned, are lost (SIGKILL), or stay while one replica
fails. Nodes that stay keep their order, and joining nodes come last. `World`, `Planned`, `Loss`, `Failure` and `End`
describe a schedule in full:

    run(train, args=(40,), slots=2, worlds=[
        World(3, Loss(at=10, nodes=(0,))),            # rank 0's node is lost
        World(2, Failure(at=20, rank=3)),             # one replica raises, its node stays
        World(2),                                     # to the end
    ])

`at` is a step that a replica reports (`state.commit`, `elastic.report`), and the world ends soon after; or it is a step
or a word that every replica passes to `reached`, and the world ends exactly there. A function that does not use this
library works too: it is stopped with SIGTERM, and reports its steps with `reached`.

The first run of a process takes some seconds, to import torch. One idle process stays for the next run and ends with
this one. In a script, call `run` under `if __name__ == "__main__":`.
"""

from __future__ import annotations

from elastic.errors import RunFailed, RunHung
from elastic.testing.replica import Injected, reached, record
from elastic.testing.result import Replica, Result, WorldResult
from elastic.testing.runner import run
from elastic.testing.schedule import End, Failure, Loss, Planned, World

__all__ = [
    "End",
    "Failure",
    "Injected",
    "Loss",
    "Planned",
    "Replica",
    "Result",
    "RunFailed",
    "RunHung",
    "World",
    "WorldResult",
    "reached",
    "record",
    "run",
]
