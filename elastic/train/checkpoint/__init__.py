"""Saves and loads checkpoints: a checkpoint is complete or absent, and fenced by generation.

::

    from elastic.train import checkpoint

    loaded = checkpoint.load()                       # every rank; None when there is nothing yet
    if loaded is not None:
        model.load_state_dict(loaded["model"])
        step = loaded.step
    ...
    checkpoint.save(step, model=model.state_dict(), optimizer=optimizer.state_dict())   # every rank; rank 0 writes

Under elastic-launch the folder is the one that `--checkpoint_dir` names, and a worker of an older world can no longer
write there (see `elastic.train.checkpoint.fence`). Under torchrun and plain python it is `ELASTIC_CHECKPOINT_DIR` or
`checkpoints`, and nothing is fenced. Neither call is a collective. Ranks that load before any rank has saved load the
same checkpoint, if they all see the same folder.

A part is anything that `torch.load(weights_only=True)` takes: tensors, numbers, text, and lists and dicts of them.
"""

from elastic.train.checkpoint.folder import Checkpoints, Loaded, load, save
from elastic.train.checkpoint.manifest import CheckpointCandidate

__all__ = ["CheckpointCandidate", "Checkpoints", "Loaded", "load", "save"]
