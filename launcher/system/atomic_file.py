"""Replace a file whole: readers see the old content or the new one, and a failure leaves the old one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write `content` where `path` is, with the permissions `mode` less the umask. Raises `OSError`."""
    new = path.with_name(f".{secrets.token_hex(8)}.new")  # A name may have the greatest length already.
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
