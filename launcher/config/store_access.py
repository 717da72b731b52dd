"""How a node reaches etcd, and as whom: servers, TLS, user and password, or the secret of the job."""

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
"""The variable with the job's secret. Workers do not get it."""
PASSWORD_BYTES_MAX = 4096
"""A file with more is not a password."""
SECRET_LENGTH_MIN = 12
"""A secret is typed once into a file, and can be tried by everybody who reaches the port."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of etcd, or the secret with which elastic-launch serves one. Without either, etcd is asked as it is.

    `file` is where the password was read, "" if a variable or a pipe had it. `made` says that the secret is a random
    one, which nobody else knows yet. `warnings` are lines to say once.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    file: str = ""
    made: bool = False
    warnings: tuple[str, ...] = ()

    def again(self) -> str:
        """What the file says now, "" if it says nothing, or if there is none that could say something new."""
        try:
            return _read("", self.file, pipe_limit_s=0.0) if self.file else ""
        except ConfigError:
            return ""


NOBODY = Credentials()
"""No user: etcd without authentication."""


def read_credentials(user: str, password_file: str, environ: Mapping[str, str], secret_file: str = "") -> Credentials:
    """The user with the password, or the job's secret, from the file, or else from the variable.

    A line end does not count: files have one, and so have variables that were made of files. Raises `ConfigError` for a
    user without a password, a password without a user, a user beside a secret, a secret that is too short, and a file
    that cannot be read; no text has the password.
    """
    if secret_file or _variable(environ, SECRET):
        source = f"--job_secret_file {secret_file}" if secret_file else SECRET
        if user or password_file:
            raise ConfigError(
                f"{source} and --etcd_user contradict each other: the secret is for the etcd that elastic-launch "
                "serves, the user for an etcd of your own; leave one out"
            )
        secret = _read("--job_secret_file", secret_file) if secret_file else _variable(environ, SECRET)
        if len(secret) < SECRET_LENGTH_MIN:
            raise ConfigError(
                f"{source} is shorter than {SECRET_LENGTH_MIN} characters; make one with: openssl rand -hex 16"
            )
        return Credentials(secret=secret, warnings=_warnings("--job_secret_file", secret_file))
    if user and not password_file and not _variable(environ, PASSWORD):
        raise ConfigError(f"--etcd_user {user} has no password: add --etcd_password_file FILE, or set {PASSWORD}")
    if password_file and not user:
        _read("--etcd_password_file", password_file)
        raise ConfigError("--etcd_password_file gives a password, but whose? add --etcd_user NAME")
    if not user:
        return NOBODY
    password = _read("--etcd_password_file", password_file) if password_file else _variable(environ, PASSWORD)
    where = os.path.abspath(password_file) if os.path.isfile(password_file) else ""
    return Credentials(user, password, file=where, warnings=_warnings("--etcd_password_file", password_file))


def is_read_once(file: str) -> bool:
    """Tell whether a process that starts later finds something else at this path, or nothing: a pipe, /dev/stdin."""
    return bool(file) and (not os.path.isfile(file) or os.path.abspath(file).startswith(("/dev/", "/proc/")))


def _warnings(flag: str, file: str) -> tuple[str, ...]:
    line = readable_by_others(file) if file else ""
    return (f"{flag} {line}",) if line else ()


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").rstrip("\r\n")


def _read(flag: str, name: str, pipe_limit_s: float | None = None) -> str:
    data = read_limited(flag, name, PASSWORD_BYTES_MAX, PIPE_LIMIT_S if pipe_limit_s is None else pipe_limit_s)
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")  # Some editors begin a file with a mark of its encoding.
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > PASSWORD_BYTES_MAX or "\n" in text:
        what = "secret" if flag == "--job_secret_file" else "password"
        raise ConfigError(f"{flag} {name} holds no {what}; it is one line of text")
    return text


WITHOUT_SECRET: Final = (
    f"{SECRET} is not shown because stderr is not a terminal; to see it, start with --print_secret, or give a secret "
    "of your own: --job_secret_file FILE on every node (openssl rand -hex 16 makes one)"
)
"""What to say where a random secret is not printed."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """`endpoints` are `host:port`, with https:// in front when they speak TLS."""

    endpoints: tuple[str, ...]
    login: Credentials = NOBODY
    certificates: Certificates = NONE

    def open(self) -> EtcdStore:
        """A client; nothing is connected yet. A password that etcd refuses is read again from its file."""
        from elastic.store.etcd import EtcdOptions, EtcdStore  # Only now: a wrong command line is told first.

        who = self.login
        options = EtcdOptions(
            user=who.user,
            password=who.password,
            password_again=who.again if who.file else None,
            secret=who.secret,
            certificates=self.certificates,
        )
        return EtcdStore(self.endpoints, options=options)


def certificates(given: Mapping[str, Any]) -> Certificates:
    """The files that were named, from the values of flags by field. They are not read yet."""
    return Certificates(ca=given.get("etcd_ca", ""), cert=given.get("etcd_cert", ""), key=given.get("etcd_key", ""))


def over_tls(servers: StoreEndpoints, files: Certificates) -> StoreEndpoints:
    """The servers, over TLS if certificates are named. Raises `ConfigError` where a server was written with http://."""
    if servers.plain and files:
        flags = [f"--etcd_{name}" for name in ("ca", "cert", "key") if getattr(files, name)]
        raise ConfigError(
            f"http:// in --elastic_server means no TLS, and {joined(flags)} {'is' if len(flags) == 1 else 'are'} "
            "for TLS; write https://, or leave one of the two out"
        )
    return servers._replace(tls=servers.tls or bool(files))


def read_access(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[StoreAccess, tuple[str, ...]]:
    """The way in, from the values of flags by field, and what to warn of. Reads the files; raises `ConfigError`."""
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
            "the job's secret is for an etcd that elastic-launch serves, which speaks no TLS; leave out https:// and "
            "--etcd_ca, or --job_secret_file (unset ELASTIC_JOB_SECRET)"
        )
    if who.password and not servers.tls and not given.get("allow_plaintext_password"):
        readable = [server for server in servers.endpoints if not is_own_loopback(parse_endpoint(server)[0])]
        if readable:
            raise ConfigError(
                f"the password of --etcd_user {who.user} would cross the network in the clear to "
                f"{', '.join(readable)}; use TLS (https:// in --elastic_server, or --etcd_ca), or accept the risk with "
                "--allow_plaintext_password"
            )
    return who


def endpoints(servers: StoreEndpoints) -> tuple[str, ...]:
    """The servers as a client of etcd takes them."""
    return tuple(f"https://{one}" for one in servers.endpoints) if servers.tls else servers.endpoints
