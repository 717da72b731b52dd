"""Train a small network on scikit-learn's digits with DDP, resuming from the newest checkpoint.

Runs as it is under elastic-launch, torchrun and plain python:

    elastic-launch --local_nodes 3 --np 1:3 -m elastic.examples.digits
    torchrun --nproc_per_node 2 -m elastic.examples.digits
    python -m elastic.examples.digits
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from elastic.train import checkpoint


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=None, help="stop after so many steps instead of --epochs")
    parser.add_argument("--batch", type=int, default=64, help="samples in one step of the whole world")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint_every", type=int, default=50, help="steps")
    parser.add_argument("--print_every", type=int, default=50, help="steps")
    parser.add_argument("--step_time", type=float, default=0.0, help="least seconds for one step, to watch it")
    parser.add_argument("--step_log", default=os.environ.get("ELASTIC_STEP_LOG"), help="a file: one line for each step")
    return parser.parse_args()


def start_process_group() -> torch.device:
    """Join the other workers and choose this one's device. Alone, under plain python, be a world of one."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group(backend)
    return device


def main() -> None:
    """Train, and print the test accuracy on rank 0."""
    args = arguments()
    device = start_process_group()
    rank, world, generation = dist.get_rank(), dist.get_world_size(), os.environ.get("ELASTIC_GENERATION", "0")

    pixels, digits = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, dtype=torch.float32, device=device)
    y = torch.tensor(digits, device=device)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train = shuffled[:360], shuffled[360:]
    steps_per_epoch = len(train) // args.batch
    steps = args.epochs * steps_per_epoch if args.steps is None else args.steps

    torch.manual_seed(args.seed)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    if (loaded := checkpoint.load(map_location=device)) is not None:
        network.load_state_dict(loaded["network"])
        optimizer.load_state_dict(loaded["optimizer"])
        step = loaded.step
        if rank == 0:
            print(f"resumed at step {step} from {loaded.folder}", flush=True)

    while step < steps:
        started = time.monotonic()
        # The samples of a step follow from seed, epoch and step alone, so that every world size computes the same.
        epoch, place = divmod(step, steps_per_epoch)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(args.seed + epoch))
        mine = train[order[place * args.batch : (place + 1) * args.batch][rank::world]]
        optimizer.zero_grad()
        # DDP averages gradients over the world; the shares may differ by one sample, hence sum, and not mean.
        loss = cross_entropy(model(x[mine]), y[mine], reduction="sum") * world / args.batch
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(max(0.0, started + args.step_time - time.monotonic()))
        if args.step_log:
            with open(args.step_log, "a") as file:
                file.write(f"{time.time():.3f} generation={generation} rank={rank} world={world} step={step}\n")
        if rank == 0 and (step % args.print_every == 0 or step == steps):
            print(f"step {step} of {steps}  loss {loss.item():.4f}  world {world}  generation {generation}", flush=True)
        if step % args.checkpoint_every == 0 or step == steps:
            checkpoint.save(step, network=network.state_dict(), optimizer=optimizer.state_dict())

    if rank == 0:
        with torch.no_grad():
            right = (network(x[test]).argmax(1) == y[test]).float().mean().item()
        print(f"test accuracy {100 * right:.1f} % after {step} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
