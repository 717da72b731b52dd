"""The two slots of one state: the next commit writes one, and a restore reads both.

There are two, so that an interrupted commit leaves the previous one intact.
"""

from __future__ import annotations

import os
from typing import Protocol

from elastic.train.memory.slot import DATA_AT, SPARE_BYTES, Slot, SlotContent, SlotMemoryShort


class SegmentSource(Protocol):
    """The source of memory: the worker's end of the channel to its agent."""

    def segment(self, name: str, size: int) -> tuple[int, int] | str:
        """Return the descriptor and size of a segment, or why there is none; size 0: only an existing one."""


class DoubleBuffer:
    """The two slots of one state, by the name of their segments. Only one process writes them."""

    def __init__(self, end: SegmentSource, name: str) -> None:
        """`end` provides the segments, whose names begin with `name`, at the first use."""
        self.name = name
        self._end = end
        self._slots: list[Slot | None] = [None, None]
        self._held: list[tuple[str, int] | None] = [None, None]
        self._looked = False

    def read_slots(self) -> list[SlotContent]:
        """Read the slots: none, one or two states."""
        self._looked = True
        self._slots = [self._open(number, 0) for number in range(2)]
        contents = [slot.read() if slot is not None else None for slot in self._slots]
        self._held = [(content.head.mark, content.head.step) if content is not None else None for content in contents]
        return [content for content in contents if content is not None]

    @property
    def there(self) -> bool:
        """Whether a segment with this name exists."""
        return any(slot is not None for slot in self._slots)

    def make_room(self, data_size: int, meta_size: int, protected: tuple[str, int] | None = None) -> Slot:
        """Return the slot to write next, large enough and cleared. Raises `SlotMemoryShort`.

        It is an empty slot, otherwise the older one, but not the one with `protected` (fencing token and step).
        """
        if not self._looked:
            self.read_slots()
        held = self._held
        if None in held:
            number = held.index(None)
        elif protected in held:
            number = 1 - held.index(protected)
        else:
            number = min(range(2), key=lambda n: _age(held[n]))
        held[number] = None
        slot = self._slots[number]
        if slot is None or not slot.fits(data_size, meta_size):
            slot = self._slots[number] = None  # Free the old memory before requesting more.
            size = DATA_AT + data_size + 2 * meta_size + SPARE_BYTES
            slot = self._slots[number] = self._open(number, -(-size // DATA_AT) * DATA_AT)
        assert slot is not None
        slot.clear()
        return slot

    def wrote(self, slot: Slot, mark: str, step: int) -> None:
        """Record the state in a slot."""
        self._held[self._slots.index(slot)] = (mark, step)

    def drop(self) -> None:
        """Free the memory, except for a page of each slot."""
        self._slots, self._held = [None, None], [None, None]
        for number in range(2):
            slot = self._open(number, 0)
            if slot is not None and slot.size > DATA_AT:
                self._end.segment(_name(self.name, number), DATA_AT)

    def _open(self, number: int, size: int) -> Slot | None:
        """Map the segment of one slot; with size 0, None if there is none."""
        answer = self._end.segment(_name(self.name, number), size)
        if isinstance(answer, str):
            if size:
                raise SlotMemoryShort(answer)
            return None
        fd, segment_size = answer
        try:
            return Slot(fd, segment_size)
        except (OSError, ValueError) as error:
            if size:
                raise SlotMemoryShort(str(error)) from error
            return None
        finally:
            os.close(fd)


def _name(name: str, number: int) -> str:
    return f"{name}.{number}"


def _age(held: tuple[str, int] | None) -> tuple[int, int]:
    """Sort older states first: by generation, then by step."""
    mark, step = held or ("", 0)
    g = mark.rpartition("/")[2]
    return (int(g) if g.isdecimal() else -1, step)
