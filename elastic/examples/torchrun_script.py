"""Train on scikit-learn's digits as a script for torchrun, with a hand-written checkpoint and without elastic-launch.

Start it with `torchrun --nproc-per-node 2`, `elastic-launch --local-nodes 2` or `python`, each followed by
`-m elastic.examples.torchrun_script`. It resumes after the last finished epoch.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save(path: str, content: dict[str, object]) -> None:
    """Replace the checkpoint atomically: readers find the old one or the new one, even if the process is killed."""
    torch.save(content, f"{path}.new")
    os.replace(f"{path}.new", path)


def main() -> None:
    """Train, and print the test accuracy on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="digits.pt", help="a file that every worker can read")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    if "RANK" not in os.environ:  # Plain python: a single process.
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    dataset = TensorDataset(x[360:], y[360:])
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=max(1, 64 // dist.get_world_size()), sampler=sampler)

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    done = 0
    if os.path.exists(args.checkpoint):
        loaded = torch.load(args.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(loaded["network"])
        optimizer.load_state_dict(loaded["optimizer"])
        done = loaded["epochs"]

    for epoch in range(done, args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            save(
                args.checkpoint,
                {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1},
            )
            print(f"epoch {epoch + 1} of {args.epochs}  loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        right = (network(x[:360].to(device)).argmax(1).cpu() == y[:360]).float().mean().item()
        print(f"test accuracy {100 * right:.1f} % after {args.epochs} epochs", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
