"""One frozen `Config`, from the command line and the environment, with the relations between values checked.

`parse` reads and checks text alone; `check` then looks at this machine: cards, script, addresses, folders. Every
mistake is a `ConfigError` of one line that says what is wrong and how to mend it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from elastic.errors import ConfigError, StoreUnavailable
from elastic.model import Np
from launcher import addresses
from launcher.cards import visible_cards
from launcher.commandline import CommandLine, cut, given_values
from launcher.flags import FLAGS
from launcher.values import SLOTS_MAX, Servers

LOSS_GRACE_S = 2.0
PYTHON_ENDINGS: Final = (".py", ".pyc", ".pyz")
"""Scripts that python runs; anything else is run as it is."""
FIND_MODULE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the user asked for. `parse` fills it, `check` replaces what only the machine can tell.

    `servers` are etcd's endpoints as `host:port`, empty for an etcd of our own; `slots` is the number of workers on
    this node (0 until `check`); `np_given` tells whether the user named np; `host` is what others are to use, "" to
    find it by the route to the store. `script` is a path, a module (`module`) or an executable. `given` are the flags
    of the command line as they were read, for the command lines of further nodes.
    """

    script: str
    script_args: tuple[str, ...] = ()
    module: bool = False

    run_mode: str = "collective"
    gpus: tuple[str, ...] = ()
    one_card_per_worker: bool = False
    slots: int = 0
    slots_word: str = ""
    local_nodes: int = 0
    host: str = ""
    nic: str = ""
    port_range: tuple[int, int] | None = None

    ips: tuple[str, ...] = ()
    ctrl_port: int = 0
    serve_port: int = 12379

    ps_servers: tuple[str, ...] = ()
    ps_workers: tuple[str, ...] = ()
    ps_heter_workers: tuple[str, ...] = ()
    server_num: int = 0
    worker_num: int = 0
    heter_worker_num: int = 0
    http_port: int = 0

    servers: tuple[str, ...] = ()
    tls: bool = False
    job_id: str = ""
    np: Np
    np_given: bool = False
    settle_s: float = 3.0
    grow_every_s: float = 60.0
    lease_ttl_s: float = 5.0
    store_outage_limit_s: float = 120.0
    connect_timeout_s: float = 60.0
    elastic_timeout_s: float | None = None
    key_prefix: str = "/elastic"
    rerun: bool = False
    force: bool = False
    allow_mismatch: bool = False

    restarts_max: int = 3
    grace_s: float = 15.0
    loss_grace_s: float = LOSS_GRACE_S
    fatal_exit_codes: tuple[int, ...] = ()
    checkpoint_dir: str = ""

    log_dir: str = "log/"
    log_overwrite: bool = False
    console: str = "rank0"
    verbose: bool = False
    quiet: bool = False

    given: tuple[tuple[str, str], ...] = ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`servers` as a client of etcd takes them: with https:// in front when they speak TLS."""
        return tuple(f"https://{server}" for server in self.servers) if self.tls else self.servers

    @property
    def python(self) -> bool:
        """Tell whether python runs the script."""
        return self.module or self.script.endswith(PYTHON_ENDINGS)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read a command line (without the program's name) and the environment."""
    return build(cut(argv), environ)


def build(line: CommandLine, environ: Mapping[str, str]) -> Config:
    """Make a `Config` of a command line that is already cut, and check the relations between its values."""
    fields: dict[str, Any] = {flag.field: flag.default for flag in FLAGS}
    given = given_values(line, environ)
    fields.update(given)
    servers = given.get("servers", Servers((), tls=False))
    fields["servers"], fields["tls"] = servers.endpoints, servers.tls
    slots = fields["slots"]
    fields["slots"], fields["slots_word"] = (slots, "") if isinstance(slots, int) else (0, slots)
    if not servers.endpoints:
        fields["local_nodes"] = fields["local_nodes"] or 1
    fields["run_mode"] = fields["run_mode"] or "collective"
    nodes = fields["local_nodes"] or 1
    fields["np_given"] = fields["np"] is not None
    fields["np"] = fields["np"] or Np(low=1, high=nodes, first=nodes)
    if fields["loss_grace_s"] is None:
        fields["loss_grace_s"] = min(LOSS_GRACE_S, fields["grace_s"])
    config = Config(script=line.script, script_args=line.script_args, module=line.module, given=line.flags, **fields)
    _check_relations(config)
    return config


def _check_relations(config: Config) -> None:
    if not config.script:
        raise ConfigError("no script is named; write elastic-launch [flags] train.py [its arguments]")
    if config.servers and not config.job_id:
        raise ConfigError("--elastic_server needs --job_id, the same name on every node of the job: add --job_id NAME")
    if config.loss_grace_s > config.grace_s:
        raise ConfigError(
            f"--loss_grace {config.loss_grace_s:g} is longer than --grace {config.grace_s:g}, but after a loss nothing "
            f"can be saved; use --loss_grace {config.grace_s:g} or less, or a longer --grace"
        )
    if config.verbose and config.quiet:
        raise ConfigError("--verbose and --quiet contradict each other; leave one out")


def check(config: Config, environ: Mapping[str, str]) -> Config:
    """Look at this machine; the config with what was found there.

    It fills in the number of workers, a random job id when there is no server, the folders as full paths, and an
    executable's full path. Raises `ConfigError` for a system that is not Linux, a script that cannot be read, and an
    address that other nodes cannot use. It changes nothing on the machine.
    """
    if sys.platform != "linux":
        raise ConfigError(f"elastic-launch runs on Linux, and this is {sys.platform}; use a container or a Linux host")
    script = _check_script(config, environ)
    job_id = config.job_id or f"local-{secrets.token_hex(3)}"
    if config.nic:
        addresses.nic_address(config.nic)
    if config.servers:
        # A name may not resolve yet. The agent asks again while it connects, and says so.
        with contextlib.suppress(StoreUnavailable):
            addresses.advertised(config.host, environ, config.servers, config.nic)
    return replace(
        config,
        script=script,
        job_id=job_id,
        slots=config.slots or _count_slots(config.slots_word, environ, config.local_nodes or 1),
        checkpoint_dir=os.path.abspath(config.checkpoint_dir or Path("checkpoints", job_id)),
        log_dir=os.path.abspath(config.log_dir),
    )


def worker_argv(config: Config) -> tuple[str, ...]:
    """The command that starts one worker; of a config that went through `check`."""
    if config.module:
        return (sys.executable, "-m", config.script, *config.script_args)
    if config.python:
        return (sys.executable, config.script, *config.script_args)
    return (config.script, *config.script_args)


def _count_slots(word: str, environ: Mapping[str, str], nodes: int) -> int:
    """Workers on each node, when `nodes` nodes share this machine."""
    if word == "cpu":
        return min(len(os.sched_getaffinity(0)) // nodes, SLOTS_MAX) or 1
    cards = len(visible_cards(environ))
    if word == "gpu" and not cards:
        raise ConfigError("--nproc_per_node gpu: no card is visible here; check nvidia-smi -L and CUDA_VISIBLE_DEVICES")
    return min(cards // nodes, SLOTS_MAX) or 1


def _check_script(config: Config, environ: Mapping[str, str]) -> str:
    """The script as it is to be run. Raises `ConfigError` if it cannot be."""
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
    found = shutil.which(config.script, path=environ.get("PATH"))
    if found is None:
        raise ConfigError(_missing(path))
    return os.path.abspath(found)


def _missing(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder, not a script"
    return f"there is no script {path} (looked in {Path.cwd()}); check the name"


def _check_module(name: str, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless python can find the module. Nothing of it is imported here."""
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
    # Not in a plain place: ask python itself, which imports the module's parents, and so not in this process.
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    command = [sys.executable, "-c", code, name]
    try:
        asked = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FIND_MODULE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:  # Its parents are slow to import, so they are there; a worker will tell the rest.
        return
    if asked.returncode:
        raise ConfigError(f"there is no module {name} here; check the name, or install it")
