"""Whether all ranks have the same checkpoint folder before them.

A folder of the same name on each machine looks just right until the node that saved is gone. So at the first commit
rank 0 writes a small file with a random name, tells the others over the network what it is called, and everybody looks.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from elastic.errors import CheckpointError
from elastic.train.checkpoint import atomic_files
from elastic.train.comm import byte_collectives

_PREFIX = ".probe-"


def why_not_shared(folder: Path, *, host: str, rank: int, group: Any) -> str:
    """Say on every rank why `folder` is not one folder that all see; "" if it is, or if rank 0 cannot write there.

    A collective of `group`. `host` is this rank's.
    """
    token = ""
    if rank == 0:
        with suppress(CheckpointError):  # The save itself says the same.
            token = write_token(folder)
    token = byte_collectives.broadcast(token.encode() if rank == 0 else None, 0, group).decode()
    if not token:
        return ""
    answer = [host, str(folder.absolute()), str(int(sees_token(folder, token)))]
    answers = [reply.decode().split("\n") for reply in byte_collectives.gather("\n".join(answer).encode(), group)]
    if rank == 0:
        remove_token(folder, token)
    blind = [(other, where) for other, where, sees in answers if sees == "0"]
    return not_shared(answers[0][0], folder.absolute(), blind) if blind else ""


def write_token(folder: Path) -> str:
    """Write the token file, on rank 0; what the others are told. Raises CheckpointError with the mend."""
    token = secrets.token_hex(8)
    with atomic_files.as_checkpoint_error("looking whether the folder is shared", folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / f"{_PREFIX}{token}").write_text(token)
        except OSError:
            remove_token(folder, token)  # A full disk takes the name of a file and not what is in it.
            raise
    return token


def sees_token(folder: Path, token: str) -> bool:
    """Tell whether the file that rank 0 wrote is in this rank's folder. One that cannot be read is not."""
    try:
        return (folder / f"{_PREFIX}{token}").read_text() == token
    except OSError:
        return False


def remove_token(folder: Path, token: str) -> None:
    """Remove the token file, on rank 0, once everybody has looked. Where that fails now, the save says why."""
    with suppress(OSError):
        (folder / f"{_PREFIX}{token}").unlink()


def not_shared(writer: str, folder: Path, others: Sequence[tuple[str, str]]) -> str:
    """Say in one line that a folder is not shared.

    `writer` is the host of rank 0, `folder` its folder; `others` are host and folder of those who do not see it.
    """
    named = ", ".join(f"{where} on {host}" for host, where in dict.fromkeys(others))
    return (
        f"the checkpoint folder is not shared: what {writer} writes to {folder} is not seen in {named}; "
        "give a --checkpoint_dir that every node can read and write, or checkpoints are lost with their node"
    )
