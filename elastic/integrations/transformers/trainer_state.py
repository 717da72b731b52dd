"""What a `Trainer` knows in addition to its model and optimizer, as text that a new process takes up."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerState

STATE_FILE = "trainer_state.json"
"""The file in a checkpoint that `Trainer.train(resume_from_checkpoint=...)` reads first."""


class TrainerSnapshots:
    """Makes the text of a `TrainerState` and of the callbacks, once for each step.

    The log history grows with the training. So each of its entries is made into text once.
    """

    def __init__(self) -> None:
        self._entries: list[str] = []

    def take(self, trainer: Any, **also: Any) -> str:
        """The state of `trainer` as JSON.

        Args:
            trainer: A `transformers.Trainer` that is training.
            **also: Further values, which JSON can hold.
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
    """The state of each callback that has one, by the name of its class, in the order of the callbacks."""
    return [(type(callback).__name__, callback.state()) for callback in _exportable(trainer)]


def put_callback_states(trainer: Any, states: list[tuple[str, Any]]) -> None:
    """Give the callbacks of `trainer` the attributes that they had; their arguments stay those of the script."""
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
    """The state of `trainer` as a document of `TrainerSnapshots` has it."""
    callbacks = [*_exportable(trainer), trainer.control]
    return TrainerState(**document["state"], log_history=document["log_history"], stateful_callbacks=callbacks)


def _exportable(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ExportableState)]
