"""A part of an `elastic.State` whose object is created after the state is restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LatePart:
    """Keeps a restored state until there is an object to load it into.

    A framework creates optimizer and scheduler only when training begins, and must know earlier where to resume.
    """

    def __init__(self) -> None:
        self._object: Any = None
        self._restored: Mapping[str, Any] | None = None

    def bind(self, thing: Any) -> None:
        """Load the restored state, if there is one, into `thing`, which has `state_dict` and `load_state_dict`.

        From now on the state of `thing` is saved.
        """
        self._object = thing
        if self._restored is not None:
            thing.load_state_dict(self._restored)
            self._restored = None

    def forget(self) -> None:
        """Drop the restored state, because a newer one is loaded instead."""
        self._restored = None

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state of the object; {} before `bind`."""
        return {} if self._object is None else self._object.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a state until `bind`. An empty one, from a rank that had no object yet, is ignored."""
        self._restored = state or None
