"""Elastic training with the Trainer of Hugging Face's transformers, exact when the world size changes.

Change one import, and set the number of samples of a step::

    from elastic.integrations.transformers import ElasticTrainer

    trainer = ElasticTrainer(model, args, train_dataset=dataset, eval_dataset=evaluation, global_batch=96)
    trainer.train()

Each step takes the same 96 samples at any world size, an epoch uses each sample once, and after a change training
resumes from the newest step in the memory of the nodes. A custom Trainer takes `ElasticTrainerMixin` before its base
class: `class MyTrainer(ElasticTrainerMixin, Trainer)`.

Tested with transformers 5.3.0, 5.10.4, 5.17.0 and 5.24.0, and with accelerate 1.15.0. Releases before 5.3 store
the sum of the losses where it cannot be restored. It uses these documented extension points of `Trainer`: the
methods `train` with its argument `resume_from_checkpoint`, `get_train_dataloader`, `training_step`, `compute_loss` and
`log`; `TrainerCallback` with `on_train_begin`, `on_epoch_begin`, `on_step_begin`, `on_step_end`, `on_epoch_end` and
`on_train_end`; `ExportableState`. In addition it overrides `get_batch_samples`, which is public, and two private
methods, `_load_from_checkpoint` and `_save_checkpoint`. It reads and sets the log counters `_tr_loss`,
`_total_loss_scalar`, `_globalstep_last_logged`, `_initial_global_step` (since 5.19) and `current_flos`, and uses
`LOSS_MAPPING` and `ForCausalLMLoss`. A test fails if a release lacks one of them.
"""

from elastic.integrations.transformers.trainer import ElasticTrainer, ElasticTrainerMixin

__all__ = ["ElasticTrainer", "ElasticTrainerMixin"]
