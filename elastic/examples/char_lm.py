"""A small GPT that learns Python from the standard library's own text, letter by letter, sharded with FSDP2.

    elastic-launch --local_nodes 2 --np 1:2 -m elastic.examples.char_lm
    torchrun --nproc_per_node 2 -m elastic.examples.char_lm --steps 300

Parameters and moments lie in shards on all ranks. A checkpoint fits any world size.
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
from torch.utils.data import DataLoader, Dataset

import elastic


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of `length` letters and the letters that follow each of them."""

    def __init__(self, length: int, files: int) -> None:
        paths = sorted(Path(os.__file__).parent.glob("*.py"))[:files]
        letters = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in paths)
        self.letters = torch.frombuffer(bytearray(letters.encode("ascii", errors="ignore")), dtype=torch.uint8).long()
        self.length = length

    def __len__(self) -> int:
        return (len(self.letters) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.letters[index * self.length : (index + 1) * self.length + 1]
        return window[:-1], window[1:]


class Gpt(nn.Module):
    """Letters in, the odds of the next letter out."""

    def __init__(self, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(128, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(copy.deepcopy(block) for _ in range(depth))
        self.head = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, length) of letters to (batch, length, 128)."""
        hidden = self.letter(x) + self.place.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return torch.log_softmax(self.head(hidden), dim=-1)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=16, help="windows in one step of the whole world")
parser.add_argument("--files", type=int, default=40, help="modules of the standard library to read")
args = parser.parse_args()

here = elastic.init()
torch.manual_seed(0)
text = Text(64, args.files)
model = Gpt(64, width=64, depth=2).to(here.device)
mesh = init_device_mesh(here.device.type, (here.world_size,))
for layer in (*model.blocks, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batch = elastic.batch(total=args.batch)
sampler = elastic.ElasticSampler(text, seed=0, batch=batch)
loader = DataLoader(text, sampler=sampler, batch_size=batch.size)
state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
state.restore()
for _ in elastic.epochs(state, 1000):
    for x, y in loader:
        loss = cross_entropy(model(x.to(here.device)).flatten(0, 1), y.to(here.device).flatten())
        optimizer.zero_grad()
        batch.weigh(loss).backward()
        optimizer.step()
        state.commit(every=50, memory_every=1, loss=loss)
        if here.rank == 0 and state.step % 10 == 0:
            print(f"step {state.step}  loss {loss.item():.3f}  world {here.world_size}", flush=True)
        if state.step >= args.steps:
            break
    if state.step >= args.steps:
        break
state.finish()
