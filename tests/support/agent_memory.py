"""The memory that an agent keeps for its workers, without an agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from elastic.channel.shared_memory import SegmentRefused, Segments


class Kept:
    """Answers as the channel does: a descriptor and its size, or why there is none."""

    def __init__(self, limit: int) -> None:
        """At most `limit` bytes in all."""
        self.segments = Segments(limit)

    def segment(self, name: str, size: int) -> tuple[int, int] | str:
        """The segment of a name, made anew if it has another size; 0 is any."""
        try:
            fd, found = self.segments.want(name, size)
        except SegmentRefused as refused:
            return str(refused)
        return os.dup(fd), found


@contextmanager
def keeping(limit: int) -> Iterator[Kept]:
    """Memory that is given back at the end."""
    made = Kept(limit)
    try:
        yield made
    finally:
        made.segments.drop_all()
