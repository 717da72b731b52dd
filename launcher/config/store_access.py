"""Access to etcd: endpoints, TLS, and the credentials: user and password, or the job secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from elastic._text import joined
from elastic.errors import ConfigError
from elastic.store.tls import NONE, PIPE_LIMIT_S, Certificates, read_limited, readable_by_others
from launcher.config.readers import StoreEndpoints
from launcher.net.endpoints import is_own_loopback, parse_endpoint

if TYPE_CHECKING:
    from elastic.store.etcd import EtcdStore

PASSWORD: Final = "ELASTIC_ETCD_PASSWORD"
"""The variable with the password. Workers do not get it."""
SECRET: Final = "ELASTIC_JOB_SECRET"
"""The variable with the job secret. Workers do not get it."""
PASSWORD_BYTES_MAX = 4096
"""A file with more is not a password."""
SECRET_LENGTH_MIN = 12
"""A secret is typed once, into a file; anyone who reaches the port can try to guess it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An etcd user, or the job secret of an etcd that elastic-launch starts, or neither.

    `file` is the file of the password, "" if it came from a variable or a pipe. `made` marks a random secret that no
    other node knows yet. `warnings` are lines to print once.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    file: str = ""
    made: bool = False
    warnings: tuple[str, ...] = ()

    def again(self) -> str:
        """The password that the file has now, "" if there is no file or no password in it."""
        try:
            return _read("", self.file, pipe_limit_s=0.0) if self.file else ""
        except ConfigError:
            return ""


NOBODY = Credentials()
"""Neither user nor secret: etcd without authentication."""


def read_credentials(user: str, password_file: str, environ: Mapping[str, str], secret_file: str = "") -> Credentials:
    """The user with the password, or the job secret, from the file or else from the variable.

    Line ends are stripped: files have them, and so do variables that were filled from files. Raises `ConfigError` for a
    user without a password, a password without a user, a user together with a secret, a secret that is too short, and a
    file that cannot be read; no message contains the password.
    """
    if secret_file or _variable(environ, SECRET):
        source = f"--job-secret-file {secret_file}" if secret_file else SECRET
        if user or password_file:
            raise ConfigError(
                f"{source} and --etcd-user contradict each other: the secret is for an etcd that elastic-launch "
                "starts, the user for an existing etcd; leave one out"
            )
        secret = _read("--job-secret-file", secret_file) if secret_file else _variable(environ, SECRET)
        if len(secret) < SECRET_LENGTH_MIN:
            raise ConfigError(
                f"{source} is shorter than {SECRET_LENGTH_MIN} characters; make one with: openssl rand -hex 16"
            )
        return Credentials(secret=secret, warnings=_warnings("--job-secret-file", secret_file))
    if user and not password_file and not _variable(environ, PASSWORD):
        raise ConfigError(f"--etcd-user {user} has no password: add --etcd-password-file FILE, or set {PASSWORD}")
    if password_file and not user:
        _read("--etcd-password-file", password_file)
        raise ConfigError("--etcd-password-file needs the name of the user: add --etcd-user NAME")
    if not user:
        return NOBODY
    password = _read("--etcd-password-file", password_file) if password_file else _variable(environ, PASSWORD)
    where = os.path.abspath(password_file) if os.path.isfile(password_file) else ""
    return Credentials(user, password, file=where, warnings=_warnings("--etcd-password-file", password_file))


def is_read_once(file: str) -> bool:
    """Whether a process that starts later cannot read the same text from this path: a pipe, /dev/stdin."""
    return bool(file) and (not os.path.isfile(file) or os.path.abspath(file).startswith(("/dev/", "/proc/")))


def _warnings(flag: str, file: str) -> tuple[str, ...]:
    line = readable_by_others(file) if file else ""
    return (f"{flag} {line}",) if line else ()


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").rstrip("\r\n")


def _read(flag: str, name: str, pipe_limit_s: float | None = None) -> str:
    data = read_limited(flag, name, PASSWORD_BYTES_MAX, PIPE_LIMIT_S if pipe_limit_s is None else pipe_limit_s)
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")  # Some editors begin a file with a byte order mark.
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > PASSWORD_BYTES_MAX or "\n" in text:
        what = "secret" if flag == "--job-secret-file" else "password"
        raise ConfigError(f"{flag} {name} holds no {what}; write it as one line of text")
    return text


WITHOUT_SECRET: Final = (
    f"{SECRET} is not shown because stderr is not a terminal; to see it, start with --print-secret, or choose a "
    "secret: --job-secret-file FILE on every node (openssl rand -hex 16 makes one)"
)
"""The message where a random secret is not printed."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Access to a store. `endpoints` are `host:port`, prefixed with https:// if they use TLS."""

    endpoints: tuple[str, ...]
    login: Credentials = NOBODY
    certificates: Certificates = NONE

    def open(self) -> EtcdStore:
        """A client that connects with its first request. If etcd rejects the password, it reads the file again."""
        from elastic.store.etcd import EtcdOptions, EtcdStore  # Only now: a wrong command line fails faster.

        login = self.login
        options = EtcdOptions(
            user=login.user,
            password=login.password,
            password_again=login.again if login.file else None,
            secret=login.secret,
            certificates=self.certificates,
        )
        return EtcdStore(self.endpoints, options=options)


def certificates(given: Mapping[str, Any]) -> Certificates:
    """The certificate files, from the values of flags by field. Does not read them."""
    return Certificates(ca=given.get("etcd_ca", ""), cert=given.get("etcd_cert", ""), key=given.get("etcd_key", ""))


def over_tls(servers: StoreEndpoints, files: Certificates) -> StoreEndpoints:
    """The endpoints, over TLS if certificates are named. Raises `ConfigError` for an endpoint with http://."""
    if servers.plain and files:
        flags = [f"--etcd-{name}" for name in ("ca", "cert", "key") if getattr(files, name)]
        raise ConfigError(
            f"http:// in --elastic-server means no TLS, and {joined(flags)} {'is' if len(flags) == 1 else 'are'} "
            "for TLS; write https://, or leave one of the two out"
        )
    return servers._replace(tls=servers.tls or bool(files))


def read_access(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[StoreAccess, tuple[str, ...]]:
    """Access to etcd, from the values of flags by field, and warnings. Reads the files; raises `ConfigError`."""
    files = certificates(given)
    servers = over_tls(given.get("servers") or StoreEndpoints((), tls=False), files)
    warnings = files.check()
    who = checked_credentials(given, servers, environ)
    return StoreAccess(endpoints(servers), who, files), (*warnings, *who.warnings)


def checked_credentials(given: Mapping[str, Any], servers: StoreEndpoints, environ: Mapping[str, str]) -> Credentials:
    """The user or the secret, from the values of settings by field. Reads the files; raises `ConfigError`."""
    who = read_credentials(
        given.get("etcd_user", ""), given.get("etcd_password_file", ""), environ, given.get("job_secret_file", "")
    )
    if who.secret and servers.tls:
        raise ConfigError(
            "the job secret is for an etcd that elastic-launch starts, which does not use TLS; leave out https:// and "
            "--etcd-ca, or --job-secret-file (unset ELASTIC_JOB_SECRET)"
        )
    if who.password and not servers.tls and not given.get("allow_plaintext_password"):
        readable = [server for server in servers.endpoints if not is_own_loopback(parse_endpoint(server)[0])]
        if readable:
            raise ConfigError(
                f"the password of --etcd-user {who.user} would cross the network in the clear to "
                f"{', '.join(readable)}; use TLS (https:// in --elastic-server, or --etcd-ca), or accept the risk with "
                "--allow-plaintext-password"
            )
    return who


def endpoints(servers: StoreEndpoints) -> tuple[str, ...]:
    """The endpoints as a client of etcd takes them."""
    return tuple(f"https://{endpoint}" for endpoint in servers.endpoints) if servers.tls else servers.endpoints
