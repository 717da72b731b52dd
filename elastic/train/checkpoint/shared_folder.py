"""Checks that all ranks see the same checkpoint directory.

A separate directory of the same name on each machine seems to work until the node that saved is gone. So at the first
commit rank 0 writes a small file with a random name, broadcasts the name, and every rank checks that it sees the file.
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
    """Return a message if `folder` is not shared by all ranks; "" if it is, or if rank 0 cannot write there.

    A collective of `group`; all ranks get the same message. `host` is that of this rank.
    """
    token = ""
    if rank == 0:
        with suppress(CheckpointError):  # The save reports the same.
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
    """Write the token file, on rank 0, and return the token for the other ranks. Raises CheckpointError with a fix."""
    token = secrets.token_hex(8)
    with atomic_files.as_checkpoint_error("checking whether the directory is shared", folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / f"{_PREFIX}{token}").write_text(token)
        except OSError:
            remove_token(folder, token)  # A full disk creates the file but does not take its contents.
            raise
    return token


def sees_token(folder: Path, token: str) -> bool:
    """Return whether this rank can read the token file of rank 0."""
    try:
        return (folder / f"{_PREFIX}{token}").read_text() == token
    except OSError:
        return False


def remove_token(folder: Path, token: str) -> None:
    """Remove the token file, on rank 0, after all ranks have checked it. The save reports an error of the disk."""
    with suppress(OSError):
        (folder / f"{_PREFIX}{token}").unlink()


def not_shared(writer: str, folder: Path, others: Sequence[tuple[str, str]]) -> str:
    """Return the one-line message for a directory that is not shared.

    `writer` is the host of rank 0, `folder` its directory; `others` are hosts and directories of ranks that do not see
    its files.
    """
    named = ", ".join(f"{where} on {host}" for host, where in dict.fromkeys(others))
    return (
        f"the checkpoint directory is not shared: files that {writer} writes to {folder} are missing in {named}; use a "
        "--checkpoint-dir that every node can read and write, otherwise a node failure deletes checkpoints"
    )
