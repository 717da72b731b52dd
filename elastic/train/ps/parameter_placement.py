"""Which server holds what. Every worker computes it from the model alone, and so all of them alike.

A dense parameter is looked at as one flat row of numbers. A large one is cut into as many pieces as there are servers,
a small one is one piece. The pieces that are whole go, largest first, to the server that has least so far. The row of
a table with id `i` is at server `i mod servers`.

A job keeps its number of servers: with another number everything would be elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from elastic.train.ps.protocol import PieceSpec

CUT_BYTES = 256 * 1024
"""From this size on a parameter is cut. Below, the bytes saved cost less than another piece does."""


def place_parameters(wholes: Sequence[PieceSpec], servers: int) -> list[list[PieceSpec]]:
    """The pieces of each server, in the order of the parameters.

    Args:
        wholes: The parameters of a model, each as one piece with a name of its own.
        servers: How many servers there are, at least 1.
    """
    load = [0] * servers
    placed: list[dict[str, PieceSpec]] = [{} for _ in range(servers)]
    small = []
    for whole in wholes:
        if servers > 1 and whole.shape.length >= CUT_BYTES and whole.stop >= servers:
            bounds = [whole.stop * part // servers for part in range(servers + 1)]
            for server in range(servers):
                piece = replace(whole, start=bounds[server], stop=bounds[server + 1])
                placed[server][whole.name] = piece
                load[server] += piece.shape.length
        else:
            small.append(whole)
    for whole in sorted(small, key=lambda whole: (-whole.shape.length, whole.name)):
        least = min(range(servers), key=lambda server: (load[server], server))
        placed[least][whole.name] = whole
        # A piece costs something besides its bytes, so that empty and tiny ones are spread as well.
        load[least] += whole.shape.length + 1
    return [[pieces[whole.name] for whole in wholes if whole.name in pieces] for pieces in placed]
