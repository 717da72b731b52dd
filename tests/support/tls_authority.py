"""Certificates for tests: an authority, another one, and what they sign. Made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic.store.tls import Certificates

NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A folder with `ca.pem` and `other.pem`, and a pair `<name>.pem`, `<name>-key.pem` for each call of `sign`."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def client(self) -> Certificates:
        """What a client of a server that wants certificates shows."""
        return Certificates(ca=self.path("ca.pem"), cert=self.path("here.pem"), key=self.path("here-key.pem"))

    def server(self, name: str = "here") -> tuple[str, str]:
        """Flags of an etcd that shows a certificate."""
        return f"--cert-file={self.path(f'{name}.pem')}", f"--key-file={self.path(f'{name}-key.pem')}"

    @property
    def wants_clients(self) -> tuple[str, str]:
        """Flags of an etcd that wants a certificate of its clients."""
        return f"--trusted-ca-file={self.path('ca.pem')}", "--client-cert-auth"

    def sign(self, name: str, names: str, days: int = 2) -> None:
        """`names` as in a subjectAltName; `days` may be negative: then it has expired."""
        self.run("req", *NEW, "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.csr")
        self.run(
            *("x509", "-req", "-days", str(days), "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial"),
            *("-in", f"{name}.csr", "-extfile", self._extensions(names), "-out", f"{name}.pem"),
        )

    def begin(self) -> Authority:
        """Make both authorities, and the pair `here`, for 127.0.0.1, server and client."""
        for name, called in (("ca", "our authority"), ("other", "another authority")):
            subject = ("-subj", f"/CN={called}", "-x509", "-days", "2")
            self.run("req", *NEW, *subject, "-keyout", f"{name}-key.pem", "-out", f"{name}.pem")
        self.sign("here", "IP:127.0.0.1")
        return self

    def _extensions(self, names: str) -> str:
        (self.folder / "names").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        return "names"

    def run(self, *arguments: str) -> None:
        """openssl, in the folder."""
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


def authority(folder: Path) -> Authority:
    """A new one. Skips where there is no openssl; `.ci/run` installs it."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine")
    return Authority(folder).begin()
