"""The certificates for TLS to etcd: the user's files, read and checked before any connection."""

from __future__ import annotations

import os
import select
import ssl
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elastic.errors import ConfigError

PEM_BYTES_MAX = 8 << 20
"""A longer file is no list of certificates; the system's has 0.2 MB."""
PIPE_LIMIT_S = 10.0
"""Seconds that a process has to write into a pipe that is given as a file, such as a shell's `<(command)`."""
ROOTS: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The usual paths of a system's trusted authorities, in case python was built with another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of PEM files: the authorities that may sign etcd's certificate, and our own certificate with its key.

    "" means none: without `ca`, the system's authorities count; without `cert`, the client presents no certificate.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""

    def __bool__(self) -> bool:
        """Return whether any file is given, so that connections use TLS."""
        return bool(self.ca or self.cert or self.key)

    def check(self) -> tuple[str, ...]:
        """Return warnings for the user. Raises `ConfigError`, with the fix, for a missing or invalid file."""
        if not self:
            return ()
        if self.cert and not self.key:
            raise ConfigError(f"--etcd-cert {self.cert} has no key: add --etcd-key FILE, the key of that certificate")
        if self.key and not self.cert:
            raise ConfigError(f"--etcd-key {self.key} has no certificate: add --etcd-cert FILE, which that key is for")
        for flag, name in (("--etcd-ca", self.ca), ("--etcd-cert", self.cert), ("--etcd-key", self.key)):
            if name:
                _read(flag, name)
        self.context()
        line = readable_by_others(self.key) if self.key else ""
        return (f"--etcd-key {line}",) if line else ()

    def context(self) -> ssl.SSLContext:
        """Return a context for the same handshake as gRPC's. Raises `ConfigError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["h2"])
        roots = self.roots()
        try:
            if roots is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(cadata=roots.decode("ascii", errors="ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"--etcd-ca {self.ca} holds no certificate in PEM (-----BEGIN CERTIFICATE-----); it is the authority "
                "that signed etcd's certificate, etcd's own --trusted-ca-file"
            ) from error
        if self.cert:
            self._load_own(context)
        return context

    def roots(self) -> bytes | None:
        """The trusted authorities, in PEM: those of the file, or the system's. None: gRPC's default."""
        if self.ca:
            return _read("--etcd-ca", self.ca)
        paths = ssl.get_default_verify_paths()
        for name in (paths.cafile, *ROOTS):
            if name and Path(name).is_file():
                return _read("the list of the system's authorities", name)
        return None

    def chain(self) -> tuple[bytes | None, bytes | None]:
        """The client's key and certificate, in PEM; None without them."""
        if not self.cert:
            return None, None
        return _read("--etcd-key", self.key), _read("--etcd-cert", self.cert)

    def _load_own(self, context: ssl.SSLContext) -> None:
        def ask() -> str:
            raise ConfigError(
                f"--etcd-key {self.key} has a passphrase, which cannot be entered here; use a key without one"
            )

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.cert)
        except ssl.SSLError as error:
            if error.reason == "NO_CERTIFICATE_OR_CRL_FOUND":
                raise ConfigError(
                    f"--etcd-cert {self.cert} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"
                ) from error
            raise ConfigError(
                f"the certificate in --etcd-cert {self.cert} is damaged; copy the whole file again"
            ) from error
        try:
            context.load_cert_chain(self.cert, self.key, password=ask)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(
                    f"--etcd-key {self.key} is not the key of --etcd-cert {self.cert}; name two that fit"
                ) from error
            if error.reason and error.reason.endswith(_WEAK):
                raise ConfigError(
                    f"--etcd-cert {self.cert} is too weak for the OpenSSL of this machine "
                    f"({error.reason.replace('_', ' ').lower()}); make another one"
                ) from error
            raise ConfigError(f"--etcd-key {self.key} holds no key in PEM (-----BEGIN PRIVATE KEY-----)") from error


_WEAK: Final = ("TOO_SMALL", "TOO_WEAK")
"""Suffixes of OpenSSL's reasons to reject a well-formed certificate."""

NONE: Final = Certificates()
"""No files: connections that use TLS trust the system's authorities."""


def readable_by_others(name: str) -> str:
    """Return a warning if users other than its owner can read a file with a secret; "" if they cannot."""
    try:
        mode = stat.S_IMODE(os.stat(name).st_mode)
    except OSError:
        return ""
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    who = "every user of this machine" if mode & stat.S_IROTH else "its group"
    return f"{name} can be read by {who}; chmod 600 {name}"


def read_limited(flag: str, name: str, bytes_max: int, pipe_limit_s: float = PIPE_LIMIT_S) -> bytes:
    """Read a user's file, up to one byte more than it may have. Raises `ConfigError`.

    A pipe is read to its end; a pipe without a writer is an error after `pipe_limit_s`.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return _read_all(fd, bytes_max + 1, time.monotonic() + pipe_limit_s)
        finally:
            os.close(fd)
    except TimeoutError as error:
        raise ConfigError(
            f"{flag} {name} is a pipe or a device, and nothing has come from it for {pipe_limit_s:g} s; name a file"
        ) from error
    except OSError as error:
        raise ConfigError(f"{flag} {name} cannot be read: {error.strerror}") from error


def _read_all(fd: int, count: int, until_s: float) -> bytes:
    """Read up to `count` bytes of what may be a pipe. Raises `TimeoutError`."""
    content = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while len(content) < count:
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            raise TimeoutError
        if not (data := os.read(fd, count - len(content))):
            break
        content += data
    return content


def _read(flag: str, name: str) -> bytes:
    if os.path.exists(name) and not (os.path.isfile(name) or os.path.isdir(name)):
        raise ConfigError(f"{flag} {name} is a pipe or a device, and is read again at each connection; name a file")
    data = read_limited(flag, name, PEM_BYTES_MAX)
    if len(data) > PEM_BYTES_MAX:
        raise ConfigError(f"{flag} {name} is longer than any list of certificates; name a file in PEM")
    return data
