"""The state of a `Trainer` without its model and optimizer, as text that a new process restores."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerState

STATE_FILE = "trainer_state.json"
"""The file in a checkpoint that `Trainer.train(resume_from_checkpoint=...)` reads first."""


class TrainerSnapshots:
    """Encodes a `TrainerState` and the state of the callbacks once for each step.

    The log history grows with the training, so each of its entries is encoded only once.
    """

    def __init__(self) -> None:
        self._entries: list[str] = []

    def take(self, trainer: Any, **also: Any) -> str:
        """Return the state of `trainer` as JSON.

        Args:
            trainer: A `transformers.Trainer` that is training.
            **also: Further values that JSON can represent.
        """
        state = trainer.state
        known = len(self._entries)
        self._entries += [json.dumps(entry) for entry in state.log_history[known:]]
        fields = {
            field.name: getattr(state, field.name)
            for field in dataclasses.fields(state)
            if field.name not in ("log_history", "stateful_callbacks")
        }
        document = {"state": fields, "callbacks": callback_states(trainer), **also}
        return f'{{"log_history": [{", ".join(self._entries)}], {json.dumps(document)[1:]}'


def callback_states(trainer: Any) -> list[tuple[str, Any]]:
    """Return the states of the callbacks that have one, by the name of the class, in the order of the callbacks."""
    return [(type(callback).__name__, callback.state()) for callback in _exportable(trainer)]


def put_callback_states(trainer: Any, states: list[tuple[str, Any]]) -> None:
    """Restore the attributes of the callbacks of `trainer`; their arguments stay those of the script."""
    left = list(states)
    for callback in _exportable(trainer):
        name = type(callback).__name__
        for number, (known, state) in enumerate(left):
            if known == name:
                for attribute, value in state.get("attributes", {}).items():
                    setattr(callback, attribute, value)
                del left[number]
                break


def trainer_state(trainer: Any, document: dict[str, Any]) -> TrainerState:
    """Return the `TrainerState` in a document of `TrainerSnapshots`, for `trainer`."""
    callbacks = [*_exportable(trainer), trainer.control]
    return TrainerState(**document["state"], log_history=document["log_history"], stateful_callbacks=callbacks)


def _exportable(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ExportableState)]
