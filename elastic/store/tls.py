"""The certificates of TLS to etcd: the files of the user, read and checked before anything is connected."""

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
"""A file with more is no list of certificates; the system's is 0.2 MB."""
PIPE_LIMIT_S = 10.0
"""So long somebody may take to write into a pipe that is named as a file. A shell's `<(command)` is one."""
ROOTS: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems have the authorities that they trust, if python was built with another place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of PEM files: the authorities that may sign etcd's certificate, and our own certificate with its key.

    "" is none: without `ca` the system's authorities count, without `cert` we show no certificate.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""

    def __bool__(self) -> bool:
        """Tell whether any is named; then TLS is spoken."""
        return bool(self.ca or self.cert or self.key)

    def check(self) -> tuple[str, ...]:
        """Raise `ConfigError` with the mend unless each file is what it should be; lines to warn the user with."""
        if not self:
            return ()
        if self.cert and not self.key:
            raise ConfigError(f"--etcd_cert {self.cert} has no key: add --etcd_key FILE, the key of that certificate")
        if self.key and not self.cert:
            raise ConfigError(f"--etcd_key {self.key} has no certificate: add --etcd_cert FILE, which that key is for")
        for flag, name in (("--etcd_ca", self.ca), ("--etcd_cert", self.cert), ("--etcd_key", self.key)):
            if name:
                _read(flag, name)
        self.context()
        line = readable_by_others(self.key) if self.key else ""
        return (f"--etcd_key {line}",) if line else ()

    def context(self) -> ssl.SSLContext:
        """What python needs for a handshake as gRPC makes it. Raises `ConfigError`."""
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
                f"--etcd_ca {self.ca} holds no certificate in PEM (-----BEGIN CERTIFICATE-----); it is the authority "
                "that signed etcd's certificate, etcd's own --trusted-ca-file"
            ) from error
        if self.cert:
            self._load_own(context)
        return context

    def roots(self) -> bytes | None:
        """The authorities that count, in PEM: those of the file, or the system's. None leaves them to gRPC."""
        if self.ca:
            return _read("--etcd_ca", self.ca)
        paths = ssl.get_default_verify_paths()
        for name in (paths.cafile, *ROOTS):
            if name and Path(name).is_file():
                return _read("the list of the system's authorities", name)
        return None

    def chain(self) -> tuple[bytes | None, bytes | None]:
        """Our key and our certificate, in PEM."""
        if not self.cert:
            return None, None
        return _read("--etcd_key", self.key), _read("--etcd_cert", self.cert)

    def _load_own(self, context: ssl.SSLContext) -> None:
        def ask() -> str:
            raise ConfigError(
                f"--etcd_key {self.key} has a passphrase, and nobody is there to type it; use one without"
            )

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.cert)
        except ssl.SSLError as error:
            if error.reason == "NO_CERTIFICATE_OR_CRL_FOUND":
                raise ConfigError(
                    f"--etcd_cert {self.cert} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"
                ) from error
            raise ConfigError(
                f"the certificate in --etcd_cert {self.cert} is damaged; copy the whole file again"
            ) from error
        try:
            context.load_cert_chain(self.cert, self.key, password=ask)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(
                    f"--etcd_key {self.key} is not the key of --etcd_cert {self.cert}; name two that fit"
                ) from error
            if error.reason and error.reason.endswith(_WEAK):
                raise ConfigError(
                    f"--etcd_cert {self.cert} is too weak for the OpenSSL of this machine "
                    f"({error.reason.replace('_', ' ').lower()}); make another one"
                ) from error
            raise ConfigError(f"--etcd_key {self.key} holds no key in PEM (-----BEGIN PRIVATE KEY-----)") from error


_WEAK: Final = ("TOO_SMALL", "TOO_WEAK")
"""How OpenSSL's reasons end for a certificate that is in order and does not do."""

NONE: Final = Certificates()
"""No file: TLS with the system's authorities, where TLS is spoken at all."""


def readable_by_others(name: str) -> str:
    """What to warn of if more users than its owner can read a file with a secret; "" if they cannot."""
    try:
        mode = stat.S_IMODE(os.stat(name).st_mode)
    except OSError:
        return ""
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    who = "every user of this machine" if mode & stat.S_IROTH else "its group"
    return f"{name} can be read by {who}; chmod 600 {name}"


def read_limited(flag: str, name: str, bytes_max: int, pipe_limit_s: float = PIPE_LIMIT_S) -> bytes:
    """The contents of a file of the user's, as far as one byte beyond what it may have. Raises `ConfigError`.

    A pipe is read to its end; one that nobody writes into is an error after `pipe_limit_s`.
    """
    try:
        # Without O_NONBLOCK the opening of a pipe waits for a writer.
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
    """Up to so many bytes of what may be a pipe. Raises `TimeoutError`."""
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
