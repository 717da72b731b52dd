"""A file that is replaced whole: readers see the old content or the new one, and a failure leaves the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write a new file to; at the end of the block it takes the place of `path`.

    Nothing is synced: after a crash of the machine `path` may have the old content, or none if the block did not wait
    for the disk. An error in the block leaves `path` as it was, and no new file.
    """
    new = path.with_name(f".{secrets.token_hex(8)}.new")  # A name may have the greatest length already.
    try:
        yield new
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write `content` where `path` is, with the permissions `mode` less the umask. Raises `OSError`."""
    with replacing(path) as new, open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
