"""A script as people write it for torchrun, which it is: it reads torchrun's variables and knows nothing of us.

It keeps its own checkpoint. With --fail_once rank 1 fails once, after epoch 2.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT, FAILED_ONCE = "snapshot.pt", "failed-once"


@record
def main() -> None:
    dist.init_process_group("gloo")
    rank, local_rank, world = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    assert (rank, world) == (dist.get_rank(), dist.get_world_size())
    assert 0 <= local_rank < int(os.environ["LOCAL_WORLD_SIZE"])

    generator = torch.Generator().manual_seed(7)
    pixels = torch.rand(600, 64, generator=generator)
    data = TensorDataset(pixels, (pixels - 0.5).mm(torch.randn(64, 10, generator=generator)).argmax(1))
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=7)
    torch.manual_seed(7)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    first = 0
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    if os.path.exists(SNAPSHOT):
        snapshot = torch.load(SNAPSHOT)
        network.load_state_dict(snapshot["network"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epoch"] + 1
    model = DistributedDataParallel(network)

    for epoch in range(first, 6):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in DataLoader(data, batch_size=50, sampler=sampler):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            torch.save(
                {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                f"{SNAPSHOT}.new",
            )
            os.replace(f"{SNAPSHOT}.new", SNAPSHOT)
            print(f"epoch {epoch} world {world} loss {total.item():.4f}", flush=True)
        dist.barrier()
        if "--fail_once" in sys.argv and epoch == 2 and rank == 1 and not os.path.exists(FAILED_ONCE):
            open(FAILED_ONCE, "w").close()
            raise RuntimeError("rank 1 fails once")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
