"""Runs a function as several replicas on one machine while the world size changes, to test that training survives.

A complete test of a training function, for pytest or any other framework::

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
            ...                                       # one training step
            record(state.step)
            state.commit(every=10)
            reached(state.step)                       # optional: makes `change_at` exact
        return model.bias.item()

    def test_training_survives_a_planned_restart_and_a_node_failure(tmp_path):
        result = run(train, args=(40,), worlds=[3, 2, 1], change_at=[10, 20], how=["planned", "node_failure"],
                     checkpoint_dir=tmp_path)
        assert len(result.values) == 1                # the return values of the last world
        assert result.worlds[0].replicas[0].code == 143

Each replica is a process with the environment of a worker of elastic-launch, on gloo and the CPU. Each node has its own
local channel and memory, as if it had its own agent. A run is a sequence of worlds. Between two worlds nodes leave as
planned or fail (SIGKILL), or all nodes stay and one replica fails. Remaining nodes keep their order, and joining nodes
come last. `World`, `Planned`, `NodeFailure`, `Failure` and `End` describe a schedule in full::

    run(train, args=(40,), slots=2, worlds=[
        World(3, NodeFailure(at=10, nodes=(0,))),     # the node of rank 0 fails
        World(2, Failure(at=20, rank=3)),             # one replica raises, its node stays
        World(2),                                     # runs to the end
    ])

`at` is a step that a replica reports (`state.commit`, `elastic.report`), and the world ends soon after; or it is a step
or a string that every replica passes to `reached`, and the world ends exactly there. A function that does not use this
library works too: it is stopped with SIGTERM, and reports its steps with `reached`.

The first run of a process imports torch, which takes seconds. One idle process remains for the next run and ends with
this process. In a script, call `run` under `if __name__ == "__main__":`.
"""

from __future__ import annotations

from elastic.errors import RunFailed, RunHung
from elastic.testing.replica import Injected, reached, record
from elastic.testing.result import Replica, Result, WorldResult
from elastic.testing.runner import run
from elastic.testing.schedule import End, Failure, NodeFailure, Planned, World

__all__ = [
    "End",
    "Failure",
    "Injected",
    "NodeFailure",
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
