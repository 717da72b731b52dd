"""Two workers train synchronously on halves of each batch; `alone` does the same on one machine."""

from __future__ import annotations

import sys

import torch

import elastic
from elastic.train import ps

STEPS = 20
BATCH = 12
LR, MOMENTUM, WEIGHT_DECAY = 0.05, 0.9, 0.01


class Net(torch.nn.Module):
    """Some layers, and embeddings whose rows may repeat in a batch."""

    def __init__(self, embedding: torch.nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.hidden = torch.nn.Linear(6, 300, dtype=torch.float64)
        self.out = torch.nn.Linear(300, 1, dtype=torch.float64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        taken: torch.Tensor = self.out(torch.tanh(self.hidden(self.embedding(ids).flatten(1))))
        return taken


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a step: two ids each, and what to learn from them."""
    ids = torch.randint(0, 9, (BATCH, 2), generator=torch.Generator().manual_seed(step))
    return ids, ids.double().sum(1, keepdim=True).sin()


def loss_of(model: Net, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(ids), target)


def alone() -> dict[str, torch.Tensor]:
    """One machine, whole batches. The table has no weight decay, and momentum only where there is a gradient."""
    torch.manual_seed(0)
    rows = ps.Embedding(9, 3, dtype=torch.float64)
    model = Net(torch.nn.Embedding(9, 3, _weight=rows.first(torch.arange(9))))
    torch.manual_seed(0)
    model.hidden.reset_parameters()
    model.out.reset_parameters()
    table = model.embedding.weight
    assert isinstance(table, torch.nn.Parameter)
    dense = [value for value in model.parameters() if value is not table]
    optimizer = torch.optim.SGD(dense, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    velocity = torch.zeros_like(table)
    for step in range(STEPS):
        model.zero_grad()
        ids, target = batch(step)
        torch.autograd.backward(loss_of(model, ids, target))
        optimizer.step()
        touched = torch.unique(ids)
        with torch.no_grad():
            assert table.grad is not None
            velocity[touched] = MOMENTUM * velocity[touched] + table.grad[touched]
            table[touched] -= LR * velocity[touched]
    return {name: value.detach() for name, value in model.state_dict().items()}


def main() -> None:
    if sys.argv[2:] == ["alone"]:
        torch.save(alone(), sys.argv[1])
        return
    env = elastic.env()
    if env.role == "server":
        ps.Server().run()
        return
    torch.manual_seed(env.index)
    model = Net(ps.Embedding(9, 3, dtype=torch.float64))
    torch.manual_seed(env.index)
    model.hidden.reset_parameters()
    model.out.reset_parameters()
    worker = ps.Worker(model, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, mode="sync")
    for step in range(STEPS):
        ids, target = batch(step)
        # Shares of different sizes: the weight makes the average that of the whole batch.
        mine = slice(0, 8) if env.index == 0 else slice(8, BATCH)
        torch.autograd.backward(loss_of(model, ids[mine], target[mine]))
        worker.step(weight=len(ids[mine]))
    if env.index == 0:
        worker.save(sys.argv[1])
    worker.close()


if __name__ == "__main__":
    main()
