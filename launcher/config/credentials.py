"""Who this is to etcd: a user and a password, or the job's secret. Neither ever stands on a command line."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from elastic.errors import ConfigError
from elastic.store.tls import PIPE_LIMIT_S, beginning, readable_by_others

PASSWORD: Final = "ELASTIC_ETCD_PASSWORD"
"""The variable with the password. Workers do not get it."""
SECRET: Final = "ELASTIC_JOB_SECRET"
"""The variable with the job's secret. Workers do not get it."""
PASSWORD_BYTES_MAX = 4096
"""A file with more is not a password."""
SECRET_LENGTH_MIN = 12
"""A secret is typed once into a file, and can be tried by everybody who reaches the port."""


@dataclass(frozen=True, slots=True)
class Login:
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


NOBODY = Login()
"""No user: etcd without authentication."""


def login(user: str, password_file: str, environ: Mapping[str, str], secret_file: str = "") -> Login:
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
        return Login(secret=secret, warnings=_warnings("--job_secret_file", secret_file))
    if user and not password_file and not _variable(environ, PASSWORD):
        raise ConfigError(f"--etcd_user {user} has no password: add --etcd_password_file FILE, or set {PASSWORD}")
    if password_file and not user:
        _read("--etcd_password_file", password_file)
        raise ConfigError("--etcd_password_file gives a password, but whose? add --etcd_user NAME")
    if not user:
        return NOBODY
    password = _read("--etcd_password_file", password_file) if password_file else _variable(environ, PASSWORD)
    where = os.path.abspath(password_file) if os.path.isfile(password_file) else ""
    return Login(user, password, file=where, warnings=_warnings("--etcd_password_file", password_file))


def new_secret() -> Login:
    """A random secret."""
    return Login(secret=secrets.token_hex(16), made=True)


def is_fleeting(file: str) -> bool:
    """Tell whether a process that starts later finds something else at this path, or nothing: a pipe, /dev/stdin."""
    return bool(file) and (not os.path.isfile(file) or os.path.abspath(file).startswith(("/dev/", "/proc/")))


def _warnings(flag: str, file: str) -> tuple[str, ...]:
    line = readable_by_others(file) if file else ""
    return (f"{flag} {line}",) if line else ()


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").rstrip("\r\n")


def _read(flag: str, name: str, pipe_limit_s: float | None = None) -> str:
    data = beginning(flag, name, PASSWORD_BYTES_MAX, PIPE_LIMIT_S if pipe_limit_s is None else pipe_limit_s)
    try:
        text = data.decode("utf-8-sig").rstrip("\r\n")  # Some editors begin a file with a mark of its encoding.
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > PASSWORD_BYTES_MAX or "\n" in text:
        what = "secret" if flag == "--job_secret_file" else "password"
        raise ConfigError(f"{flag} {name} holds no {what}; it is one line of text")
    return text
