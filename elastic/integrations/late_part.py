"""A part of an `elastic.State` whose object is made later than the state is restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LatePart:
    """Keeps what was restored until there is an object to load it into.

    A framework makes optimizer and scheduler only when training begins, and must know before that where to resume.
    """

    def __init__(self) -> None:
        self._object: Any = None
        self._restored: Mapping[str, Any] | None = None

    def bind(self, thing: Any) -> None:
        """Load what was restored, if anything was, into `thing`, which has `state_dict` and `load_state_dict`.

        From now on its state is saved.
        """
        self._object = thing
        if self._restored is not None:
            thing.load_state_dict(self._restored)
            self._restored = None

    def forget(self) -> None:
        """Drop what was restored: something newer is loaded instead."""
        self._restored = None

    def state_dict(self) -> Mapping[str, Any]:
        """The state of the object; nothing before `bind`."""
        return {} if self._object is None else self._object.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a state until `bind`. An empty one, of a rank that had no object yet, is none."""
        self._restored = state or None
