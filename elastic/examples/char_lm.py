"""Train a small GPT on the source of Python's standard library, character by character, sharded with FSDP2.

    elastic-launch --local-nodes 2 --np 1:2 -m elastic.examples.char_lm
    torchrun --nproc-per-node 2 -m elastic.examples.char_lm --steps 300

Parameters and optimizer state are sharded over all ranks. A checkpoint can be loaded at any world size.
"""

from __future__ import annotations

import argparse
import copy
import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import elastic

LENGTH, WIDTH = 64, 64


class Gpt(nn.Module):
    """Predicts the next character at each position: returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(2))
        self.head = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map characters of shape (batch, LENGTH) to logits of shape (batch, LENGTH, 128)."""
        hidden = self.letter(x) + self.place.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return torch.log_softmax(self.head(hidden), dim=-1)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=16, help="windows per step over all ranks")
parser.add_argument("--files", type=int, default=40, help="modules of the standard library to read")
args = parser.parse_args()

here = elastic.init()
files = sorted(Path(os.__file__).parent.glob("*.py"))[: args.files]
letters = b"".join(file.read_bytes() for file in files).decode("ascii", errors="ignore").encode()
windows = torch.frombuffer(bytearray(letters), dtype=torch.uint8).long().unfold(0, LENGTH + 1, LENGTH)
text = TensorDataset(windows[:, :-1], windows[:, 1:])
torch.manual_seed(0)
model = Gpt().to(here.device)
mesh = init_device_mesh(here.device.type, (here.world_size,))
for part in (*model.blocks, model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batch = elastic.GlobalBatch(total=args.batch)
sampler = elastic.ElasticSampler(text, seed=0, batch=batch)
loader = elastic.DataLoader(text, sampler=sampler)
state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
state.restore()
for _ in elastic.epochs(state, args.steps):  # An epoch has at least one step.
    for x, y in loader:
        if state.step == args.steps:
            break
        optimizer.zero_grad()
        loss = cross_entropy(model(x.to(here.device)).flatten(0, 1), y.to(here.device).flatten())
        batch.scale_loss(loss).backward()
        optimizer.step()
        state.commit(every=50, memory_every=1, loss=loss, total=args.steps)
        if here.rank == 0 and state.step % 10 == 0:
            print(f"step {state.step}  loss {loss.item():.3f}  world {here.world_size}", flush=True)
