"""Checks a Config against this machine: GPUs, script, addresses, directories. Changes nothing."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from elastic.errors import ConfigError, StoreUnavailable
from launcher.config import devices, host_list, store_access
from launcher.config.config import Config
from launcher.config.ps_layout import listed_hosts, static_hosts
from launcher.config.readers import StoreEndpoints
from launcher.net import addresses
from launcher.net.endpoints import as_ip
from launcher.spot.endpoint import PROVIDERS, endpoint
from launcher.system import limits
from launcher.system.private_env import inheritable_env

FIND_MODULE_TIMEOUT_S = 60.0


def check(config: Config, environ: Mapping[str, str]) -> Config:
    """Check a config against this machine, and return it with the values that depend on the machine.

    Fills in the GPUs and the number of workers, a random job ID if nothing names the job, the full paths of directories
    and the full path of an executable. Raises `ConfigError` for a system that is not Linux, a script that cannot be
    read, a GPU that does not exist, and an address that other nodes cannot use.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"elastic-launch runs on Linux, and this system is {sys.platform}; use a container or a Linux host"
        )
    limits.check_surroundings()
    script = _check_script(config, environ)
    config = replace(config, host=_listed_host(config, environ))
    job_id = config.job_id or f"local-{secrets.token_hex(3)}"
    serves = config.serve != "" or (config.served_by != "" and config.host == config.served_by)
    if config.nic:
        addresses.nic_address(config.nic)
    # A name of the list may resolve to a loopback address here and to a real one elsewhere (Debian's 127.0.1.1).
    if config.servers and (config.host not in static_hosts(config) or as_ip(config.host) is not None):
        # A name may not resolve yet. The agent resolves it again while it connects, and reports that.
        with contextlib.suppress(StoreUnavailable):
            addresses.advertised(config.host, environ, config.servers, config.nic)
    if config.spot != "none":
        for provider in PROVIDERS if config.spot == "auto" else (config.spot,):
            endpoint(provider, environ)  # Raises for a variable that does not name a server.
    who, warnings = _resolve_access(config, environ)
    config = devices.resolve_gpus(replace(config, warnings=warnings), environ)
    limits.check_limits(config.slots, nodes=config.local_nodes or 1, etcd=serves or not config.servers)
    return replace(
        config,
        script=script,
        job_id=job_id,
        serves=serves,
        local_nodes=config.local_nodes or int(serves),
        login=who,
        checkpoint_dir=os.path.abspath(config.checkpoint_dir or Path("checkpoints", job_id)),
        resume_from=_resume_from(config),
        log_dir=os.path.abspath(config.log_dir),
    )


def _listed_host(config: Config, environ: Mapping[str, str]) -> str:
    """This node's name in the lists of hosts; `Config.host` if no list names it."""
    source = addresses.source_of(config.host, environ)
    if config.ips:
        return host_list.own_entry(config.ips, config.host, flag=config.list_flag, source=source)
    if config.roles is None:
        return config.host
    return host_list.own_entry(
        listed_hosts(config.roles),
        config.host,
        flag="--servers, --workers" + (", --heter-workers" if config.roles.heters else ""),
        source=source,
        is_hint=all(name != "host" for name, _ in config.given),
        required=not config.roles.separate,
    )


def _check_script(config: Config, environ: Mapping[str, str]) -> str:
    """Return the script as it will be run. Raises `ConfigError` if it cannot run."""
    if config.module:
        _check_module(config.script, environ)
        return config.script
    path = Path(config.script)
    try:
        is_file = path.is_file()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the script {config.script!r} cannot be looked up: {error}") from error
    if config.python:
        if not is_file:
            raise ConfigError(_missing(path))
        if not os.access(path, os.R_OK):
            raise ConfigError(f"the script {config.script} cannot be read; check its permissions")
        return config.script
    if is_file:
        if not os.access(path, os.X_OK):
            raise ConfigError(f"{config.script} is not executable; chmod +x it, or give a script that ends in .py")
        return os.path.abspath(path)
    program = shutil.which(config.script, path=environ.get("PATH"))
    if program is None:
        raise ConfigError(_missing(path))
    return os.path.abspath(program)


def _resume_from(config: Config) -> str:
    """The full path of the checkpoint to start from, "" if none is named. Raises `ConfigError` if it is missing."""
    if not config.resume_from:
        return ""
    path = os.path.abspath(config.resume_from)
    if not os.access(path, os.R_OK):
        what = "cannot be read; check its permissions" if os.path.lexists(path) else "does not exist; check the path"
        raise ConfigError(f"--resume-from {config.resume_from}: {path} {what}, every node has to read it")
    return path


def _missing(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a directory, not a script"
    return f"there is no script {path} (looked in {Path.cwd()}); check the name"


def _check_module(name: str, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless python can find the module, without importing it here."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"-m {name!r} is not the name of a module; write it with dots and without .py")
    places: list[str] | None = None
    for length in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:length])
        spec = importlib.machinery.PathFinder.find_spec(part, [os.getcwd(), *sys.path] if places is None else places)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
    else:
        return
    # Not on the plain path: let another python process look, because that imports the module's parents.
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    command = [sys.executable, "-c", code, name]
    try:
        asked = subprocess.run(
            command,
            env=inheritable_env(environ, ()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FIND_MODULE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:  # Its parents exist and are slow to import; a worker will report the rest.
        return
    if asked.returncode:
        hint = f"write -m {name[:-3]}, or leave -m out" if name.endswith(".py") else "check the name, or install it"
        raise ConfigError(f"there is no module {name} here; {hint}")


def _resolve_access(config: Config, environ: Mapping[str, str]) -> tuple[store_access.Credentials, tuple[str, ...]]:
    """The credentials for etcd, and warnings. Checks the certificates as well."""
    warnings = (*config.warnings, *config.certificates.check())
    who = store_access.checked_credentials(vars(config), StoreEndpoints(config.servers, config.tls), environ)
    if config.serve and not who.secret:
        if config.quiet:
            raise ConfigError(
                "--serve prints the job secret that other nodes need, and --quiet prints nothing; leave out --quiet, "
                "or give the secret: --job-secret-file FILE or ELASTIC_JOB_SECRET"
            )
        who = store_access.Credentials(secret=secrets.token_hex(16), made=True)
    return who, (*warnings, *who.warnings)
