"""Saves and loads checkpoints. Saves are atomic, and fenced by generation.

::

    from elastic.train import checkpoint

    loaded = checkpoint.load()                       # every rank; None when there is nothing yet
    if loaded is not None:
        model.load_state_dict(loaded["model"])
        step = loaded.step
    ...
    checkpoint.save(step, model=model.state_dict(), optimizer=optimizer.state_dict())   # every rank; rank 0 writes

Under elastic-launch the directory is that of `--checkpoint-dir`, and a worker of an older generation can no longer
write there (see `elastic.train.checkpoint.fence`). Under torchrun and plain Python it is `ELASTIC_CHECKPOINT_DIR` or
`checkpoints`, and there is no fencing. Neither call is a collective. All ranks that load before any rank saves load the
same checkpoint, if they see the same directory.

A component is anything that `torch.load(weights_only=True)` accepts: tensors, numbers, strings, and lists and dicts of
them.
"""

from elastic.train.checkpoint.folder import Checkpoints, Loaded, load, save
from elastic.train.checkpoint.manifest import CheckpointCandidate

__all__ = ["CheckpointCandidate", "Checkpoints", "Loaded", "load", "save"]
