"""Linear regression with parameter servers: the same script for servers and workers.

On one machine, under elastic-launch:

    elastic-launch --server_num 2 --worker_num 2 -m elastic.examples.ps_regression

By hand, one line in each of four terminals:

    export PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:6174,127.0.0.1:6175 PADDLE_TRAINERS=2
    PADDLE_TRAINING_ROLE=PSERVER PADDLE_CURRENT_ENDPOINT=127.0.0.1:6174 python -m elastic.examples.ps_regression
    PADDLE_TRAINING_ROLE=PSERVER PADDLE_CURRENT_ENDPOINT=127.0.0.1:6175 python -m elastic.examples.ps_regression
    PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0                    python -m elastic.examples.ps_regression
    PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1                    python -m elastic.examples.ps_regression

On several machines PADDLE_PSERVER_IPS and PADDLE_PSERVER_PORT name the servers, and PADDLE_CURRENT_IP each one itself.
"""

from __future__ import annotations

import argparse

import torch

import elastic
from elastic.train import ps

BATCH_SIZE = 8
EPOCH_NUM = 30


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=EPOCH_NUM)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--mode", choices=("async", "sync"), default="async")
    parser.add_argument("--save", default="", help="a file for the trained model, written by worker 0")
    return parser.parse_args()


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """The features and the target, each with mean 0 and deviation 1."""
    from sklearn.datasets import load_diabetes  # Not above: servers need no data, and start sooner without.

    features, target = load_diabetes(return_X_y=True, scaled=False)
    x = torch.tensor(features, dtype=torch.float32)
    y = torch.tensor(target, dtype=torch.float32).unsqueeze(1)
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def train(args: argparse.Namespace, index: int) -> None:
    """What a worker does."""
    x, y = samples()
    torch.manual_seed(index)
    model = torch.nn.Linear(10, 1)
    worker = ps.Worker(model, lr=args.lr, mode=args.mode)
    for epoch in range(args.epochs):
        for batch_id, batch in enumerate(torch.split(torch.randperm(len(x)), BATCH_SIZE)):
            loss = (model(x[batch]) - y[batch]).square().mean()
            loss.backward()
            worker.step()
            if (batch_id + 1) % 10 == 0:
                print(f"Epoch: {epoch}, Batch: {batch_id}, loss: {loss.item()}", flush=True)
    if index == 0:
        worker.pull()
        with torch.no_grad():
            print(f"final loss: {(model(x) - y).square().mean().item():.4f}", flush=True)
        if args.save:
            worker.save(args.save)
    # Every worker tells the servers that it has ended; they end after the last one.
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
