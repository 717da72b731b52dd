"""Detects whether the loss of a model compares each position with the label of the next one."""

from __future__ import annotations

from typing import Any, Final

from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

CAUSAL_MODELS: Final = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()) - {
    "XLMWithLMHeadModel",  # The losses of these two do not shift the labels.
    "XLNetLMHeadModel",
}


def shifts_labels(model: Any) -> bool:
    """Return whether the loss ignores the first label of each sample, as in a causal language model.

    The Trainer only reads the `loss_type` of the model. That is None for classes whose name does not contain it, such
    as `GPT2LMHeadModel`, although these shift their labels.

    Args:
        model: The model, without DDP and adapters around it.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    loss_type = getattr(model, "loss_type", None)
    if loss_type in LOSS_MAPPING:
        return LOSS_MAPPING[loss_type] is ForCausalLMLoss
    return any(kind.__name__ in CAUSAL_MODELS for kind in type(model).__mro__)
