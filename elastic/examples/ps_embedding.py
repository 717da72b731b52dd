"""Predict the next character of Python's standard library from the three before it, with a sparse table on servers.

The table has a row for each of the 2,097,152 triples of ASCII characters. A worker only pulls the rows of its batch,
and only rows that were trained use memory on their server.

    elastic-launch --server-num 2 --worker-num 2 -m elastic.examples.ps_embedding

To start it by hand, see ps_regression.
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
MODULES = ("argparse", "ast", "inspect", "optparse", "random", "shutil", "socket", "subprocess", "textwrap", "typing")


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Read the source of some modules; return every triple of characters as one number, and the character after it."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    source = b"".join((folder / f"{name}.py").read_bytes() for name in MODULES)
    text = torch.tensor([character for character in source if character < CHARACTERS])
    return (text[:-3] * CHARACTERS + text[1:-2]) * CHARACTERS + text[2:-1], text[3:]


def train(args: argparse.Namespace, index: int) -> None:
    """Train as one of the workers; `index` counts them from 0."""
    triples, following = samples()
    generator = torch.Generator().manual_seed(index)  # Each worker draws its own samples.
    table = ps.Embedding(CHARACTERS**3, args.dim, std=0.1)
    model = torch.nn.Sequential(table, torch.nn.Linear(args.dim, CHARACTERS))
    total = 0.0
    with ps.Worker(model, lr=args.lr, mode=args.mode) as worker:
        for step in range(1, args.steps + 1):
            batch = torch.randint(len(triples), (args.batch,), generator=generator)
            loss = cross_entropy(model(triples[batch]), following[batch])
            loss.backward()
            worker.step()
            total += loss.item()
            if step % args.print_every == 0:
                print(f"step {step} of {args.steps}  loss {total / args.print_every:.4f}", flush=True)
                total = 0.0


def main() -> None:
    """Read the command line, then serve or train, depending on the environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--mode", choices=("async", "sync"), default="async")
    parser.add_argument("--print_every", type=int, default=50, help="steps")
    args = parser.parse_args()
    env = elastic.env()
    if env.role == "server":
        ps.Server().run()
    else:
        train(args, env.index)


if __name__ == "__main__":
    main()
