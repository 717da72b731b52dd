"""What a console that several workers share says of each of them."""

from __future__ import annotations

import re
from collections.abc import Iterable


def by_rank(lines: Iterable[str]) -> list[tuple[int, str]]:
    """The rank and the text of each line; one that several ranks have said stands there for each of them."""
    found = []
    for line in lines:
        match = re.fullmatch(r"\[[^]]+\] ranks? ([0-9,-]+): (.*)", line)
        assert match is not None, line
        for part in match[1].split(","):
            low, _, high = part.partition("-")
            found += [(rank, match[2]) for rank in range(int(low), int(high or low) + 1)]
    return found
