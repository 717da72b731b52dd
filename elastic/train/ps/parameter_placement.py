"""The placement of parameters on servers. Every worker computes the same placement from the model alone.

A dense parameter is a flat array. A large one is split into one piece per server, a small one is one piece. Unsplit
pieces go, largest first, to the server with the fewest bytes so far. The row of a table with ID `i` is on server
`i mod servers`.

The number of servers of a job is constant, because another number would change the whole placement.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from elastic.train.ps.protocol import PieceSpec

CUT_BYTES = 256 * 1024
"""The size from which a parameter is split; below, another piece costs more than it saves."""


def place_parameters(wholes: Sequence[PieceSpec], servers: int) -> list[list[PieceSpec]]:
    """Return the pieces of each server, in the order of the parameters.

    Args:
        wholes: The parameters of a model, each as one piece with a unique name.
        servers: The number of servers, 1 or more.
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
        # A piece counts as at least one byte, so that empty and tiny ones are spread too.
        load[least] += whole.shape.length + 1
    return [[pieces[whole.name] for whole in wholes if whole.name in pieces] for pieces in placed]
