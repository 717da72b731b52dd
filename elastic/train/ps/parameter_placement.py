"""Which server holds what. Every worker computes it from the model alone, and so all of them alike.

A dense parameter is looked at as one flat row of numbers. A large one is cut into as many pieces as there are servers,
a small one is one piece. The pieces that are whole go, largest first, to the server that has least so far. The row of
a table with id `i` is at server `i mod servers`.

A job keeps its number of servers: with another number everything would be elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CUT_BYTES = 256 * 1024
"""From this size on a parameter is cut. Below, the bytes saved cost less than another piece does."""


class ParameterExtent(NamedTuple):
    """A parameter as far as the placement is concerned."""

    name: str
    size: int
    """Numbers in it."""
    width: int
    """Bytes of one number."""


class ParameterPiece(NamedTuple):
    """The numbers from `start` up to `stop` of a parameter's flat row, and the server that holds them."""

    name: str
    start: int
    stop: int
    server: int


def place_parameters(extents: Sequence[ParameterExtent], servers: int) -> tuple[ParameterPiece, ...]:
    """Where every piece goes, ordered by the parameters as they were given.

    Args:
        extents: The parameters of a model, each with a name of its own.
        servers: How many servers there are, at least 1.
    """
    load = [0] * servers
    placed: dict[str, tuple[ParameterPiece, ...]] = {}
    whole = []
    for extent in extents:
        if servers > 1 and extent.size * extent.width >= CUT_BYTES and extent.size >= servers:
            bounds = [extent.size * part // servers for part in range(servers + 1)]
            placed[extent.name] = tuple(
                ParameterPiece(extent.name, bounds[n], bounds[n + 1], n) for n in range(servers)
            )
            for piece in placed[extent.name]:
                load[piece.server] += (piece.stop - piece.start) * extent.width
        else:
            whole.append(extent)
    for extent in sorted(whole, key=lambda extent: (-extent.size * extent.width, extent.name)):
        least = min(range(servers), key=lambda server: (load[server], server))
        placed[extent.name] = (ParameterPiece(extent.name, 0, extent.size, least),)
        # A piece costs something besides its bytes, so that empty and tiny ones are spread as well.
        load[least] += extent.size * extent.width + 1
    return tuple(piece for extent in extents for piece in placed[extent.name])
