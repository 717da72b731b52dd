"""Hugging Face Accelerate at a world size that may change at any time, with the numbers of a run that never changes.

::

    from elastic.integrations.accelerate import ElasticAccelerator      # was: from accelerate import Accelerator

    accelerator = ElasticAccelerator(gradient_accumulation_steps=2)     # was: Accelerator(...)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in accelerator.epochs(3):                                 # was: for epoch in range(3)
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(inputs), targets))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

It uses the documented interfaces of Accelerate: the methods of `accelerate.Accelerator`, which a subclass overrides
(`prepare`, `prepare_data_loader`, `prepare_model`, `prepare_optimizer`, `prepare_scheduler`,
`register_for_checkpointing`, `accumulate`, `backward`, `clip_grad_norm_`, `clip_grad_value_`, `unscale_gradients`,
`gather_for_metrics`, `skip_first_batches`, `save_state`, `load_state`, `free_memory`, `end_training`), its settable
`sync_gradients`, `accelerate.data_loader.DataLoaderStateMixin` for loaders, `accelerate.scheduler.AcceleratedScheduler`
and torch's `register_step_post_hook` of an optimizer. It uses one private name: `Accelerator._schedulers`, from
which `save_state` takes the schedulers. `tests/process/integrations/test_accelerate.py` tests all of it.

Tested: accelerate 1.15.0 with torch 2.13 on the CPU. Guide: docs/guides/accelerate.md.
"""

from __future__ import annotations

from elastic.integrations.accelerate.accelerator import ElasticAccelerator as ElasticAccelerator

__all__ = ["ElasticAccelerator"]
