"""Guess the next character of Python's own library from the three before it, with a sparse table on the servers.

The table has a row for each of the 2,097,152 triples of ASCII characters. Only the rows of a batch come to a worker,
and only rows that were trained cost memory on their server.

    elastic-launch --server_num 2 --worker_num 2 -m elastic.examples.ps_embedding

By hand it is started as ps_regression is.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import elastic
from elastic.train import ps

CHARACTERS = 128
CONTEXT = 3
MODULES = ("argparse", "ast", "inspect", "pathlib", "random", "shutil", "socket", "subprocess", "textwrap", "typing")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--mode", choices=("async", "sync"), default="async")
    parser.add_argument("--print_every", type=int, default=50, help="steps")
    return parser.parse_args()


def text() -> torch.Tensor:
    """The source of some modules, as numbers below `CHARACTERS`."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    raw = b"".join((folder / f"{name}.py").read_bytes() for name in MODULES)
    return torch.tensor([character for character in raw if character < CHARACTERS])


def train(args: argparse.Namespace, index: int) -> None:
    """What a worker does."""
    characters = text()
    windows = characters.unfold(0, CONTEXT + 1, 1)
    triples = windows[:, 0] * CHARACTERS**2 + windows[:, 1] * CHARACTERS + windows[:, 2]

    table = ps.Embedding(CHARACTERS**CONTEXT, args.dim, std=0.1)
    model = torch.nn.Sequential(table, torch.nn.Linear(args.dim, CHARACTERS))
    worker = ps.Worker(model, lr=args.lr, mode=args.mode)
    random = torch.Generator().manual_seed(index)
    losses = []
    for step in range(1, args.steps + 1):
        batch = torch.randint(len(windows), (args.batch,), generator=random)
        loss = cross_entropy(model(triples[batch]), windows[batch, CONTEXT])
        torch.autograd.backward(loss)
        worker.step()
        losses.append(loss.item())
        if step % args.print_every == 0:
            mean = sum(losses[-args.print_every :]) / args.print_every
            print(f"step {step} of {args.steps}  loss {mean:.4f}", flush=True)
    worker.close()


def main() -> None:
    """Serve or train, as the environment says."""
    args = arguments()
    env = elastic.env()
    if env.role == "server":
        ps.Server().run()
    else:
        train(args, env.index)


if __name__ == "__main__":
    main()
