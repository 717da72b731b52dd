"""The weights of a model with adapters (PEFT), without the frozen ones, which the script loads itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from elastic.errors import ConfigError

SAMPLED_MAX: Final = 64
"""The number of values of a frozen weight that are compared; other weights differ in nearly all of them."""


def has_adapters(model: Any) -> bool:
    """Return whether a model has adapters, from `peft.get_peft_model` or `model.add_adapter`."""
    return bool(getattr(model, "peft_config", None))


class TrainedWeights:
    """The state of a model without its frozen parameters, such as those of the base model below adapters.

    The state includes a parameter from the first step that trains it, even if it is frozen again later. It always
    includes buffers. `frozen_digest` detects other frozen weights without copying them.

    Args:
        model: The model, not wrapped.
        keep_frozen: Include the frozen parameters too.
    """

    def __init__(self, model: torch.nn.Module, *, keep_frozen: bool) -> None:
        self._model = model
        self._keep_frozen = keep_frozen
        self._trained: set[str] = set()
        """The names of parameters that a step of this process or of an earlier one has trained."""
        self._samples: dict[str, bytes] = {}
        self._digest: tuple[frozenset[str], str] = (frozenset(), "")

    def note_trained(self) -> None:
        """Note which parameters the completed step has trained."""
        self._trained.update(name for name, parameter in self._parameters() if parameter.requires_grad)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the model, without parameters that are frozen and were never trained."""
        self.note_trained()
        state = self._model.state_dict()
        if self._keep_frozen:
            return dict(state)
        frozen = self._frozen()
        return {name: value for name, value in state.items() if not _belongs_to(name, frozen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; all other parameters keep the values that the script loaded.

        Raises:
            ConfigError: The state belongs to a model with other adapters.
        """
        self._trained.update(state)
        self.note_trained()
        missing, unexpected = self._model.load_state_dict(state, strict=False)
        frozen = self._frozen()
        wrong = [*unexpected, *(name for name in missing if not _belongs_to(name, frozen))]
        if wrong:
            where = "checkpoint" if unexpected else "model"
            raise ConfigError(
                f"ElasticTrainer: the adapters of the model differ from those of the checkpoint: {wrong[0]} exists "
                f"only in the {where}; use the same adapters, or start another job"
            )

    def frozen_digest(self) -> str:
        """Return a digest of the frozen parameters that are not in the state; it differs if their values do."""
        if self._keep_frozen:
            return ""
        frozen = frozenset(self._frozen())
        if frozen != self._digest[0]:
            parameters = dict(self._parameters())
            digest = hashlib.sha256()
            for name in sorted(frozen):
                if name not in self._samples:
                    self._samples[name] = _sample(parameters[name])
                digest.update(name.encode() + b"\0" + self._samples[name])
            self._digest = (frozen, digest.hexdigest())
        return self._digest[1]

    def _frozen(self) -> set[str]:
        return {name for name, parameter in self._parameters() if not parameter.requires_grad} - self._trained

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return self._model.named_parameters(remove_duplicate=False)


def _belongs_to(name: str, parameters: set[str]) -> bool:
    """Return whether `name` is one of `parameters`, or an entry that a quantized one saves below its name."""
    if name in parameters:
        return True
    at = name.rfind(".")
    while at > 0:
        if name[:at] in parameters:
            return True
        at = name.rfind(".", 0, at)
    return False


def _sample(parameter: torch.Tensor) -> bytes:
    """Return some values of a parameter as bytes; none of a quantized one, which other GPUs may round differently."""
    if parameter.is_meta or not parameter.is_floating_point() or not parameter.numel():
        return b""
    count = parameter.numel()
    places = torch.arange(0, count, max(1, count // SAMPLED_MAX), device=parameter.device)[:SAMPLED_MAX]
    return parameter.detach().take(places).cpu().view(torch.uint8).numpy().tobytes()
