"""Checks how a node reaches etcd: the relations between its flags, then its secret and its password."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elastic.errors import ConfigError
from launcher.config.readers import StoreEndpoints
from launcher.config.store_access import Credentials, _check_password, _check_secret, new_secret, read_credentials
from launcher.net.endpoints import is_any, parse_endpoint

if TYPE_CHECKING:
    from launcher.config.config import Config


def check_relations(config: Config) -> None:
    """Raise `ConfigError` where the flags contradict each other: some are for an etcd of ours, some for another."""
    if config.servers:
        if config.serve:
            raise ConfigError("--serve starts an etcd here, and --elastic_server names one; leave one of the two out")
        return
    if config.serve:
        _check_host(config)
    if config.certificates:
        named = next(name for name in ("ca", "cert", "key") if getattr(config.certificates, name))
        raise ConfigError(
            f"--etcd_{named} is for an etcd of your own: add --elastic_server HOST:PORT, or leave it out (unset "
            f"ELASTIC_ETCD_{named.upper()}); the one that is started here speaks no TLS"
        )
    served = next((f for f, given in ((config.list_flag, config.ips), ("--servers", config.ps_servers)) if given), "")
    if served and config.serve:
        raise ConfigError(f"--serve and {served} contradict each other: with {served} the host that sorts first serves")
    if (served or config.serve) and config.etcd_user:
        raise ConfigError(
            f"--etcd_user is for an etcd of your own; to close the one that {served or '--serve'} starts, give every "
            "node the same --job_secret_file FILE or ELASTIC_JOB_SECRET"
        )


def _check_host(config: Config) -> None:
    """Raise `ConfigError` where --serve names all addresses, and nothing names one that other machines reach."""
    address, _ = parse_endpoint(config.serve)
    if not is_any(address):
        return
    if not config.host:
        raise ConfigError(
            f"--serve {address} is every address of this machine, and other machines need one of them: add --host "
            "ADDRESS, at which they reach this one"
        )
    if is_any(config.host):
        raise ConfigError(f"--host {config.host} is no address that other machines reach; name one of this machine")


def resolve_access(config: Config, environ: Mapping[str, str]) -> tuple[Credentials, tuple[str, ...]]:
    """Who this is to etcd, and what to warn of; certificates are checked, too."""
    warnings = (*config.warnings, *config.certificates.check())
    who = read_credentials(config.etcd_user, config.etcd_password_file, environ, config.job_secret_file)
    _check_secret(who, tls=config.tls)
    _check_password(who, StoreEndpoints(config.servers, config.tls), allowed=config.allow_plaintext_password)
    if config.serve and not who.secret:
        if config.quiet:
            raise ConfigError(
                "--serve prints the secret that other nodes need, and --quiet prints nothing; leave out --quiet, or "
                "give the secret: --job_secret_file FILE or ELASTIC_JOB_SECRET"
            )
        who = new_secret()
    return who, (*warnings, *who.warnings)
