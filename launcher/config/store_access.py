"""The way into etcd, the same for agents, elastic-ctl and the doctor: which servers, over TLS or not, and as whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from elastic.errors import ConfigError
from elastic.store.tls import NONE, Certificates
from launcher.config.credentials import NOBODY, SECRET, Login, login
from launcher.config.readers import Servers
from launcher.net.endpoints import is_own_loopback, parse_endpoint

if TYPE_CHECKING:
    from elastic.store.etcd import EtcdStore

FLAGS: Final = (
    "elastic_server",
    "etcd_ca",
    "etcd_cert",
    "etcd_key",
    "etcd_user",
    "etcd_password_file",
    "allow_plaintext_password",
    "job_secret_file",
)
"""The flags of `elastic-launch` that say it; whatever opens a store has them."""


WITHOUT_SECRET: Final = (
    f"{SECRET} is not shown because stderr is not a terminal; to see it, start with --print_secret, or give a secret "
    "of your own: --job_secret_file FILE on every node (openssl rand -hex 16 makes one)"
)
"""What to say where a random secret is not printed."""


@dataclass(frozen=True, slots=True)
class Access:
    """`endpoints` are `host:port`, with https:// in front when they speak TLS."""

    endpoints: tuple[str, ...]
    login: Login = NOBODY
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


def over_tls(servers: Servers, files: Certificates) -> Servers:
    """The servers, over TLS if certificates are named. Raises `ConfigError` where a server was written with http://."""
    if servers.plain and files:
        flags = [f"--etcd_{name}" for name in ("ca", "cert", "key") if getattr(files, name)]
        raise ConfigError(
            f"http:// in --elastic_server means no TLS, and {', '.join(flags)} {'is' if len(flags) == 1 else 'are'} "
            "for TLS; write https://, or leave one of the two out"
        )
    return servers._replace(tls=servers.tls or bool(files))


def access(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Access, tuple[str, ...]]:
    """The way in, from the values of flags by field, and what to warn of. Reads the files; raises `ConfigError`."""
    files = certificates(given)
    servers = over_tls(given.get("servers") or Servers((), tls=False), files)
    warnings = files.check()
    who = login(
        given.get("etcd_user", ""), given.get("etcd_password_file", ""), environ, given.get("job_secret_file", "")
    )
    _check_secret(who, tls=servers.tls)
    _check_password(who, servers, allowed=given.get("allow_plaintext_password", False))
    return Access(endpoints(servers), who, files), (*warnings, *who.warnings)


def _check_secret(who: Login, *, tls: bool) -> None:
    if who.secret and tls:
        raise ConfigError(
            "the job's secret is for an etcd that elastic-launch serves, which speaks no TLS; leave out https:// and "
            "--etcd_ca, or --job_secret_file (unset ELASTIC_JOB_SECRET)"
        )


def _check_password(who: Login, servers: Servers, *, allowed: bool) -> None:
    """Refuse to send a password in the clear to another machine, unless it is `allowed`."""
    if not who.password or servers.tls or allowed:
        return
    readable = [one for one in servers.endpoints if not is_own_loopback(parse_endpoint(one)[0])]
    if readable:
        raise ConfigError(
            f"the password of --etcd_user {who.user} would cross the network in the clear to {', '.join(readable)}; "
            "use TLS (https:// in --elastic_server, or --etcd_ca), or accept the risk with --allow_plaintext_password"
        )


def endpoints(servers: Servers) -> tuple[str, ...]:
    """The servers as a client of etcd takes them."""
    return tuple(f"https://{one}" for one in servers.endpoints) if servers.tls else servers.endpoints
