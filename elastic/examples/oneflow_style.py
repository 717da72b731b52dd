"""Train on scikit-learn's digits as in OneFlow's guide to distributed training: the script lists its nodes.

Run the same command on both machines; the first one shows the result and saves the model:

    python -m elastic.examples.oneflow_style --nodes 192.168.1.12,192.168.1.11

On one machine, with two workers:

    python -m elastic.examples.oneflow_style --gpu_device_num 2
"""

from __future__ import annotations

import argparse

import elastic
from elastic import oneflow as flow

BATCH_SIZE = 100


def config_distributed(args: argparse.Namespace) -> None:
    """Configure the job. Outside a worker this starts the script in workers; inside a worker it does nothing."""
    flow.config.gpu_device_num(args.gpu_device_num)  # The number of GPUs, and so of workers, on every node.
    if args.ctrl_port:
        flow.env.ctrl_port(args.ctrl_port)  # The rendezvous port of the workers; by default a free one.
    if args.nodes:  # The node that shows the output and saves the model.
        flow.env.machine([{"addr": address} for address in args.nodes.split(",")])
    else:
        flow.launch()


def train(args: argparse.Namespace) -> None:
    """Train in a worker. Torch is imported here, because the process that becomes the launcher does not need it."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    ctx = elastic.init()
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32, device=ctx.device)
    labels = torch.tensor(digits, device=ctx.device)
    test, known = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tensor_split([360])
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(ctx.device)
    model = DistributedDataParallel(network)  # Broadcasts rank 0's weights, and averages the gradients over all ranks.
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, args.epochs + 1):
        order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(epoch))]
        for samples in order.split(BATCH_SIZE):
            batch = samples[ctx.rank :: ctx.world_size]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
        if ctx.rank == 0 and epoch % 10 == 0:
            print(f"epoch {epoch}  loss {loss.item():.4f}  world {ctx.world_size}", flush=True)
    if ctx.rank == 0:
        with torch.no_grad():
            right = (network(images[test]).argmax(1) == labels[test]).float().mean().item()
        torch.save(network.state_dict(), args.model)
        print(f"test accuracy {100 * right:.1f} %; the model is in {args.model}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="", help="comma-separated addresses of all nodes; default: this machine")
    parser.add_argument("--gpu_device_num", type=int, default=1)
    parser.add_argument("--ctrl-port", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--model", default="mlp.pt", help="where the first node saves the model")
    arguments = parser.parse_args()
    config_distributed(arguments)
    train(arguments)
