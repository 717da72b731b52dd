"""The training script of the benchmarks as torchft has it: one replica group of one worker, gloo.

    torchft_training.py LIGHTHOUSE STEP_LOG PAUSE_S COMPUTES_S COLLECTIVE_TIMEOUT_S

It makes the steps of training.py, and appends a line to `STEP_LOG` after each that was committed, until it is killed.
`PAUSE_S` pass between two steps, as in training.py, and `COMPUTES_S` within a step, where a script computes: between
`zero_grad`, which begins the quorum, and `backward`. A replica group that stops there leaves the others in their
collective. One that stops between two steps is left out after the join timeout of the lighthouse, 0.1 s.

Gradients are averaged by `Manager.allreduce` and not by torchft's DistributedDataParallel, which ends with an
AssertionError (torchft 0.2.0) when a collective times out.
"""

from __future__ import annotations

import os
import socket
import sys
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]
from torchft import Manager, Optimizer, ProcessGroupGloo  # type: ignore[import-not-found, unused-ignore]

from tests.bench.steplog import Writer
from tests.bench.training import network, steps


def address_towards(server: str) -> str:
    """This host's address, as the lighthouse sees it."""
    host, _, port = server.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def main() -> None:
    lighthouse, path = sys.argv[1:3]
    pause_s, computes_s, collective_s = map(float, sys.argv[3:6])
    address = address_towards(lighthouse)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if address == "127.0.0.1" else "eth0"
    socket.gethostname = lambda: address  # Under its name others look for its state; all hosts here have one name.
    torch.set_num_threads(1)
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=collective_s)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=store.port,
        lighthouse_addr=f"http://{lighthouse}",
        hostname=address,
    )
    optimizer = Optimizer(manager, inner)

    def average() -> None:
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()

    written = 0
    for _ in steps(model, optimizer, pause_s=pause_s, computes_s=computes_s, average=average):
        if manager.current_step() > written and (rank := manager.participating_rank()) is not None:
            written = manager.current_step()
            Writer(path, rank, manager.num_participants()).write(written)


if __name__ == "__main__":
    main()
