"""Scripts that import a package as people do, look at their process, do a little work, and form a process group."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple


class PackageScript(NamedTuple):
    """What a script imports, and its work; `names` are modules that a later start must find loaded."""

    imports: str
    work: str
    names: tuple[str, ...]


NUMPY = PackageScript(
    "import numpy as np\nimport threadpoolctl",
    """
a = np.random.default_rng(0).standard_normal((40, 40))
print(np.linalg.svd(a)[1].sum().round(6), np.einsum("ij,jk->", a, a).round(6), np.array2string(a[0, :3], precision=4))
print(np.random.RandomState(0).rand(2), np.fft.fft(a[0]).real.sum().round(6), flush=True)
""",
    ("numpy", "threadpoolctl"),
)
PANDAS = PackageScript(
    "import pandas as pd",
    """
import io
times = pd.date_range("2024-01-01", periods=4, tz="UTC")
frame = pd.DataFrame({"who": list("abab"), "much": [1.0, 2, 3, 4], "at": times})
print(frame.groupby("who").much.sum().to_dict(), frame.sample(2, random_state=0).index.tolist())
print(frame.to_csv(index=False), pd.read_csv(io.StringIO(frame.to_csv())).dtypes.to_dict())
print(frame["who"].str.upper().tolist(), frame.merge(frame, on="who").shape, flush=True)
""",
    ("pandas",),
)
SKLEARN = PackageScript(
    "from sklearn import datasets, linear_model\nfrom sklearn.model_selection import train_test_split",
    """
x, y = datasets.load_digits(return_X_y=True)
parts = train_test_split(x, y, random_state=0)
model = linear_model.LogisticRegression(max_iter=20)
print(model.fit(parts[0], parts[2]).score(parts[1], parts[3]))
from sklearn.cluster import KMeans
print(round(KMeans(3, random_state=0, n_init=1).fit(x[:200]).inertia_, 3))
from joblib import Parallel, delayed
print(Parallel(n_jobs=2)(delayed(abs)(i) for i in (-1, -2)), flush=True)
""",
    ("sklearn.datasets", "sklearn.linear_model", "scipy.stats"),
)
TRANSFORMERS = PackageScript(
    "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed",
    """
set_seed(0)
config = GPT2Config(
    vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"
)
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
options = TrainingArguments(
    "out", max_steps=2, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=1
)
print(round(Trainer(GPT2LMHeadModel(config), options, train_dataset=rows).train().training_loss, 4))
from tokenizers import Tokenizer, models, pre_tokenizers
tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
print([one.ids for one in tokenizer.encode_batch(["a b", "b c"] * 4)], flush=True)
""",
    ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
)
ACCELERATE = PackageScript(
    "import torch\nfrom accelerate import Accelerator\nfrom accelerate.utils import set_seed",
    """
set_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
rows = torch.utils.data.DataLoader([torch.ones(2)] * 8, batch_size=2)
model, optimizer, rows = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), rows)
for batch in rows:
    loss = model(batch).sum()
    accelerator.backward(loss)
    optimizer.step()
from accelerate import PartialState
state = PartialState()
print(round(loss.item(), 5), state.process_index, state.num_processes, state.local_process_index, flush=True)
""",
    ("accelerate",),
)
LIGHTNING = PackageScript(
    "import lightning as L\nimport torch\nfrom lightning.pytorch.utilities import rank_zero_only",
    """
print("rank", rank_zero_only.rank)
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, rows):
        return self.layer(rows).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
L.seed_everything(0)
trainer = L.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
model = Model()
trainer.fit(model, torch.utils.data.DataLoader([torch.ones(2)] * 8, batch_size=2))
print([round(one, 4) for one in model.layer.weight[0].tolist()], trainer.global_rank, trainer.local_rank, flush=True)
""",
    ("lightning", "torchmetrics"),
)
DATASETS = PackageScript(
    "from datasets import Dataset, disable_progress_bars",
    """
disable_progress_bars()
data = Dataset.from_dict({"x": list(range(20)), "word": list("abcdefghijklmnopqrst")})
parts = data.train_test_split(0.25, seed=0)
doubled = data.map(lambda row: {"y": row["x"] * 2}).filter(lambda row: row["y"] > 30)
print(parts["test"]["x"][:], doubled["y"][:], data.map(lambda row: {"z": 1}, num_proc=2).features)
print(data.with_format("torch")[:2], data.shuffle(seed=0)["word"][:4], data._fingerprint, flush=True)
""",
    ("datasets",),
)
PACKAGES: Final = {
    "numpy": NUMPY,
    "pandas": PANDAS,
    "sklearn": SKLEARN,
    "transformers": TRANSFORMERS,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
    "datasets": DATASETS,
}
SCRIPT = """
import sys
before = [*sys.modules]
{imports}
import view
view.write("imported", before)
{work}
import torch.distributed as dist
if not dist.is_initialized():
    dist.init_process_group("gloo")
view.write("worked", before)
dist.barrier()
"""
"""It looks at its process after its imports, and after its work."""


WAITS = """
import os
import threading
if os.environ["ELASTIC_GENERATION"] == "1" and "WAITS" in os.environ:
    print("waits", flush=True)
    threading.Event().wait()
"""
"""In the first generation of a job that learns, a script waits to be killed."""
RUNS = """
import importlib.util
import runpy
runpy.run_path(importlib.util.find_spec("{}").origin, run_name="__main__")
"""
BORING = """
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
seed_everything(0)
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, limit_train_batches=4, limit_val_batches=2,
    enable_checkpointing=False, enable_progress_bar=False, logger=False,
)
model = BoringModel()
trainer.fit(model, BoringDataModule())
trainer.test(model, BoringDataModule())
print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()}, flush=True)
"""
FRAMEWORKS: Final = {
    "test_script": RUNS.format("accelerate.test_utils.scripts.test_script"),
    "test_sync": RUNS.format("accelerate.test_utils.scripts.test_sync"),
    "boring_classes": BORING,
}
"""Test scripts of Accelerate, and a demo of Lightning, as they are in the wheels."""


def write_framework(folder: Path, name: str) -> Path:
    """Write the script that runs one of a framework."""
    path = folder / "train.py"
    path.write_text(FRAMEWORKS[name] + WAITS)
    return path


def write(folder: Path, package: str) -> Path:
    """Write the script of a package, and `view`, which it imports."""
    script = PACKAGES[package]
    (folder / "view.py").write_text((Path(__file__).parent / "process_view.py").read_text())
    path = folder / "train.py"
    path.write_text(SCRIPT.format(imports=script.imports, work=script.work) + WAITS)
    return path
