"""Atomic replacement of a file: readers see the old or the new content, and a failure keeps the old content."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path for a new file, which replaces `path` at the end of the block.

    The file is not synced: after a crash of the machine, `path` may have the old content, or none if the block did not
    sync the new file. An error in the block keeps `path` as it was, and removes the new file.
    """
    new = path.with_name(f".{secrets.token_hex(8)}.new")  # The name of `path` may already have the maximum length.
    try:
        yield new
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace the file at `path` by `content`, with the permissions `mode` minus the umask. Raises `OSError`."""
    with replacing(path) as new, open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
