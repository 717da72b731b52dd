"""Linear regression with parameter servers: the same script for servers and workers.

On one machine, under elastic-launch:

    elastic-launch --server-num 2 --worker-num 2 -m elastic.examples.ps_regression

By hand, one line in each of four terminals:

    export PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:6174,127.0.0.1:6175 PADDLE_TRAINERS=2
    PADDLE_TRAINING_ROLE=PSERVER PADDLE_CURRENT_ENDPOINT=127.0.0.1:6174 python -m elastic.examples.ps_regression
    PADDLE_TRAINING_ROLE=PSERVER PADDLE_CURRENT_ENDPOINT=127.0.0.1:6175 python -m elastic.examples.ps_regression
    PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0                    python -m elastic.examples.ps_regression
    PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1                    python -m elastic.examples.ps_regression

On several machines PADDLE_PSERVER_IPS and PADDLE_PSERVER_PORT name the servers; each server sets PADDLE_CURRENT_IP.
"""

from __future__ import annotations

import argparse

import torch
from torch.nn.functional import mse_loss

import elastic
from elastic.train import ps

BATCH_SIZE = 8


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Load 442 patients: 10 features and a target, each scaled to mean 0 and standard deviation 1."""
    from sklearn.datasets import load_diabetes  # Servers need no data, and start faster without scikit-learn.

    features, target = load_diabetes(return_X_y=True, scaled=False)
    x = torch.tensor(features, dtype=torch.float32)
    y = torch.tensor(target, dtype=torch.float32).unsqueeze(1)
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def train(args: argparse.Namespace, index: int) -> None:
    """Train as one of the workers; `index` counts them from 0."""
    x, y = samples()
    torch.manual_seed(index)  # Each worker shuffles the samples differently.
    model = torch.nn.Linear(10, 1)
    with ps.Worker(model, lr=args.lr, mode=args.mode) as worker:
        for epoch in range(args.epochs):
            for step, batch in enumerate(torch.randperm(len(x)).split(BATCH_SIZE)):
                loss = mse_loss(model(x[batch]), y[batch])
                loss.backward()
                worker.step()
                if (step + 1) % 10 == 0:
                    print(f"Epoch: {epoch}, Batch: {step}, loss: {loss.item()}", flush=True)
        if index == 0:
            worker.pull()
            with torch.no_grad():
                print(f"final loss: {mse_loss(model(x), y).item():.4f}", flush=True)
            if args.save:
                worker.save(args.save)


def main() -> None:
    """Read the command line, then serve or train, depending on the environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--mode", choices=("async", "sync"), default="async")
    parser.add_argument("--save", default="", help="a file for the trained model, written by worker 0")
    args = parser.parse_args()
    env = elastic.env()
    if env.role == "server":
        ps.Server().run()
    else:
        train(args, env.index)


if __name__ == "__main__":
    main()
