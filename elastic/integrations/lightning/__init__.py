"""Elastic training with Lightning: `from elastic.integrations.lightning import Trainer`.

A script changes one line, the Trainer. Tested with lightning 2.6.0 and 2.6.6, and torch 2.13, on the CPU.

It uses these documented interfaces of Lightning:

- `Trainer` is subclassed; `fit` gets the `ckpt_path`, and `enable_validation` is False before the first batch after a
  restart.
- `ClusterEnvironment`, `CheckpointIO` and a subclass of `DDPStrategy` (`process_dataloader`, `training_step`,
  `backward`, `reduce`, `save_checkpoint`, `barrier`, `root_device`, `distributed_sampler_kwargs`).
- `Callback` with its hooks, `state_dict` and `load_state_dict`; `Trainer.save_checkpoint`, `train_dataloader`,
  `num_training_batches`, `accumulate_grad_batches`, `callback_metrics`, `should_stop`, `limit_val_batches`,
  `limit_test_batches`; `ModelCheckpoint.dirpath`; `SaveConfigCallback.overwrite`.
- Loaders with `state_dict`, `load_state_dict` and a sampler with `set_epoch`.

It uses no private names. `Trainer.fit_loop` is public, but its class is not documented; `restarting`, `batch_idx`,
`on_iteration_done()` and `epoch_loop.batch_progress.is_last_batch` of it are used, and tests assert their behaviour.
Commits fall between two steps because of the order of Lightning's loop, which tests assert too: it fetches a batch
after the previous step is complete, and prefetches none if the length is known.
"""

from __future__ import annotations

from elastic.integrations.lightning.trainer import Trainer

__all__ = ["Trainer"]
