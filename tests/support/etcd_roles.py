"""Users and roles of etcd, made by the very commands of docs/guides/security.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from elastic.store.embedded import find_etcd
from elastic.store.tls import NONE, Certificates

PAGE = Path(__file__).parents[2] / "docs/guides/security.md"

PASSWORDS = {"root": "pw-of-root", "train": "pw-of-train", "train-j1": "pw-of-train-j1"}


class Rights:
    """The administrator of an etcd: a folder with the passwords, and etcdctl."""

    def __init__(self, folder: Path, endpoint: str, certificates: Certificates = NONE) -> None:
        self._folder = folder
        binaries = Path(find_etcd()).parent
        tls = {"CACERT": certificates.ca, "CERT": certificates.cert, "KEY": certificates.key}
        self._environ = {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "ETCDCTL_API": "3",
            "ETCDCTL_ENDPOINTS": f"https://{endpoint}" if certificates else endpoint,
            **{f"ETCDCTL_{name}": path for name, path in tls.items() if path},
        }
        for name, text in PASSWORDS.items():
            (folder / f"{name}-password").write_text(f"{text}\n")
            (folder / f"{name}-password").chmod(0o600)

    def grant(self, *parts: str) -> None:
        """Run these parts of the page, in one shell; what a part before it exported counts."""
        self.run("\n".join(part_of_the_page(part) for part in parts))

    def as_root(self, command: str) -> None:
        """Run one more command, with authentication on."""
        self.run(f'export ETCDCTL_USER=root ETCDCTL_PASSWORD="$(cat root-password)"\n{command}')

    def run(self, commands: str) -> None:
        ran = subprocess.run(
            ["bash", "-e", "-u", "-c", commands],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr


def part_of_the_page(name: str) -> str:
    """The commands below `<!-- tested: NAME -->`."""
    found = re.search(rf"<!-- tested: {name} -->\n((?:    .*\n)+)", PAGE.read_text())
    assert found, f"docs/guides/security.md has no commands {name!r}"
    return found[1]
