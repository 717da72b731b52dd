"""Who this is to etcd: a user, and a password that never stands on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastic.errors import ConfigError

PASSWORD = "ELASTIC_ETCD_PASSWORD"
"""The variable with the password. Workers do not get it."""
PASSWORD_BYTES_MAX = 4096
"""A file with more is not a password."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd. Without one, etcd is asked as it is."""

    user: str = ""
    password: str = field(default="", repr=False)


NOBODY = Login()
"""No user: etcd without authentication."""


def login(user: str, password_file: str, environ: Mapping[str, str]) -> Login:
    """The user with the password from the file, or else from the variable.

    The line end of the file does not count. Raises `ConfigError` for a user without a password, a password without a
    user, and a file that cannot be read; no text has the password.
    """
    password = _read(password_file) if password_file else environ.get(PASSWORD, "")
    source = "--etcd_password_file" if password_file else PASSWORD
    if user and not password:
        raise ConfigError(f"--etcd_user {user} has no password: add --etcd_password_file FILE, or set {PASSWORD}")
    if password_file and not user:
        raise ConfigError(f"{source} gives a password, but whose? add --etcd_user NAME")
    return Login(user, password) if user else NOBODY


def _read(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            data = file.read(PASSWORD_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--etcd_password_file {name} cannot be read: {error.strerror}") from error
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        text = ""
    if not text or len(data) > PASSWORD_BYTES_MAX or "\n" in text:
        raise ConfigError(f"--etcd_password_file {name} holds no password; it is one line of text")
    return text
