"""A disk that stands still, as a network disk without its server does: every write waits, and no signal ends the wait.

It is a file system in a file, which is frozen. Needs root, mkfs.ext4, and a loop device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

SIZE = 256 << 20
"""Bytes of the disk; what is not written takes no room."""
NEEDED = ("mkfs.ext4", "mount", "umount", "fsfreeze")


class Disk:
    """A file system of its own below a folder."""

    def __init__(self, folder: Path) -> None:
        image = folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(SIZE)
        self.path = folder / "disk"
        self.path.mkdir()
        _run("mkfs.ext4", "-q", "-F", str(image))
        _run("mount", "-o", "loop", str(image), str(self.path))
        self._frozen = False

    def __enter__(self) -> Disk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        _run("umount", "--lazy", str(self.path))

    def freeze(self) -> None:
        """Let every write wait from now on."""
        _run("fsfreeze", "--freeze", str(self.path))
        self._frozen = True

    def thaw(self) -> None:
        """Let the disk go on."""
        if self._frozen:
            self._frozen = False
            _run("fsfreeze", "--unfreeze", str(self.path))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """A disk that stands still meanwhile."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


def missing() -> str:
    """Why there can be no such disk here, "" if there can."""
    if os.geteuid() != 0:
        return "mounting a disk needs root"
    for name in NEEDED:
        if shutil.which(name) is None:
            return f"there is no {name} (Debian: e2fsprogs, util-linux)"
    with tempfile.TemporaryDirectory(prefix="elastic-disk-") as folder:
        try:
            with Disk(Path(folder)) as disk, disk.frozen():
                return ""
        except subprocess.CalledProcessError as error:
            return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
