"""What torchrun's flags say to the plugin: --rdzv-endpoint, --rdzv-id, --nnodes, --local-addr and --rdzv-conf.

Every mistake is a `ConfigError` of one line that names the option and the mend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from elastic.core.model import SETTLE_MAX_S, JobMode, Np
from elastic.errors import ConfigError
from launcher.config import readers, store_access
from launcher.config.config import Config
from launcher.config.durations import LEASE_TTL_MIN_S, METAVAR, duration, duration_text, lease_ttl
from launcher.config.flags import BY_NAME as FLAGS
from launcher.config.parse import check_silence_timeout


class Option(NamedTuple):
    """One option of --rdzv-conf. `field` is one of `Config` or `RdzvSettings`, `flag` one of elastic-launch, or ""."""

    name: str
    field: str
    read: Callable[[str], Any]
    shown: str
    meaning: str
    flag: str = ""


def _as_flag(name: str, meaning: str) -> Option:
    """The option with the name, the values and the default of a flag of elastic-launch."""
    flag = FLAGS[name]
    shown = duration_text(flag.default) if flag.metavar == METAVAR else "0" if flag.switch else str(flag.default)
    return Option(name, flag.field, flag.read or readers.boolean, shown, meaning, name)


OPTIONS: Final = (
    Option("join_timeout", "join_timeout_s", duration(1), "10m", "how long a round may take to come together; a node "
           "that waits as a spare beside a running world is not hurried"),
    Option("last_call_timeout", "settle_s", duration(0), "3s", "how long after the last arrival more may come, 15s at "
           "most in all; with --nnodes MAX there is nothing to wait for", "settle"),
    Option("close_timeout", "close_timeout_s", duration(1), "30s", "how long the end of a job may take to be agreed"),
    _as_flag("connect_timeout", "how long to try to reach etcd at the start"),
    _as_flag("lease_ttl", "a node that does not refresh its lease for this long is lost; one whose process is gone is "
             "noticed at once"),
    _as_flag("silence_timeout", "evict a node that has sent no heartbeat for this long, as soon as other nodes confirm "
             "that they cannot reach it; 0.1s or more and less than lease_ttl; 0 turns heartbeats off, so that only "
             "lease_ttl counts"),
    Option("keep_alive_interval", "interval_s", duration(0.1), "", "torch's name: with keep_alive_max_attempt it makes "
           "lease_ttl, their product"),
    Option("keep_alive_max_attempt", "attempts", readers.count(1, 1000), "3", "see keep_alive_interval"),
    Option("grow_every", "grow_every_s", duration(0), "1m", "newcomers are taken into a running job at most once in "
           "this time", "grow_every"),
    _as_flag("store_outage_limit", "the longest that nodes which hear each other go on while etcd is away"),
    _as_flag("key_prefix", "every key in etcd is below this"),
    _as_flag("etcd_ca", "the authority that signed etcd's certificate"),
    _as_flag("etcd_cert", "our own certificate, where etcd wants one"),
    _as_flag("etcd_key", "its key"),
    _as_flag("etcd_user", "the user of etcd"),
    _as_flag("etcd_password_file", "a file with the password, one line"),
    _as_flag("allow_plaintext_password", "1 sends the password also to an etcd without TLS on another machine, where "
             "everybody on the network path can read it; with 0 that is refused"),
    _as_flag("job_secret_file", "a file with the secret of an etcd that elastic-launch serves"),
    _as_flag("nic", "the network interface whose address the others are to use"),
    _as_flag("rerun", "1 runs a job again that has ended"),
    _as_flag("allow_mismatch", "1 joins although versions differ"),
    _as_flag("verbose", "1 says more, 0 what matters"),
    _as_flag("quiet", "1 says only what a person has to know"),
)  # fmt: skip
BY_NAME: Final = {option.name: option for option in OPTIONS}
BY_FLAG: Final = {option.flag: option.name for option in OPTIONS if option.flag}
OF_OTHERS: Final = {
    "is_host": "etcd is the host; leave it out",
    "store_type": "etcd is the store; leave it out",
    "read_timeout": "leave it out",
    "heartbeat_timeout": "use silence_timeout",
    "protocol": "write https:// in --rdzv-endpoint",
    "ssl_cert": "use etcd_cert",
    "ssl_cert_key": "use etcd_key",
    "cacert": "use etcd_ca",
    "ca": "use etcd_ca",
    "cert": "use etcd_cert",
    "key": "use etcd_key",
    "user": "use etcd_user",
    "password": "a password does not belong on a command line; use etcd_password_file, or ELASTIC_ETCD_PASSWORD",
    "password_file": "use etcd_password_file",
    "etcd_prefix": "use key_prefix",
    "min_workers": "use --nnodes MIN:MAX",
    "max_workers": "use --nnodes MIN:MAX",
}
"""Options of torch's own backends, and near misses, with the mend."""
IGNORED: Final = ("timeout", "rank")
"""What torchrun itself adds, whatever was typed."""
ATTEMPTS = 3
QUOTES: Final = "'\""
"""What torch leaves in place where the shell did not remove it."""


@dataclass(frozen=True, slots=True)
class RdzvSettings:
    """`config` is what a node of elastic-launch with the same settings would have. The others are torch's own."""

    config: Config
    join_timeout_s: float = 600.0
    close_timeout_s: float = 30.0


def read(
    endpoint: str,
    run_id: str,
    nodes: tuple[int, int],
    local_addr: str | None,
    given: Mapping[str, Any],
    environ: Mapping[str, str],
) -> RdzvSettings:
    """Read it all. `nodes` are MIN and MAX; `given` is --rdzv-conf, with what torchrun adds to it.

    Reads the files that are named; raises `ConfigError`.
    """
    fields = {field: value for field, value in _options(given) if value is not None}
    if not endpoint.strip():
        raise ConfigError(
            "--rdzv-endpoint is missing; write --rdzv-endpoint HOST:2379, where etcd is (with `accelerate launch`, set "
            "PET_RDZV_ENDPOINT)"
        )
    servers = readers.read_as("--rdzv-endpoint", readers.servers, endpoint)
    job_id = readers.read_as("--rdzv-id", readers.job_id, run_id)
    host = readers.read_as("--local-addr", readers.host, local_addr) if local_addr else ""
    way, warnings = store_access.read_access({**fields, "servers": servers}, environ)
    timeouts = {name: fields.pop(name) for name in ("join_timeout_s", "close_timeout_s") if name in fields}
    _keep_alive(fields)
    if fields.get("verbose") and fields.get("quiet"):
        raise ConfigError("--rdzv-conf: verbose and quiet contradict each other; leave one out")
    if "settle_s" in fields:
        fields["settle_s"] = min(fields["settle_s"], SETTLE_MAX_S)
    low, high = nodes
    config = Config(
        script="",  # Only torchrun knows it.
        module=True,
        run_mode=JobMode.TORCHRUN,
        slots=1,
        host=host,
        servers=servers.endpoints,
        tls=way.endpoints != servers.endpoints,
        login=way.login,
        job_id=job_id,
        np=Np(low=low, high=high, first=low),
        restarts_max=readers.RESTARTS_MAX,  # torchrun counts them itself, each agent its own.
        host_cooldown_s=0.0,  # The plugin does not learn whose worker failed by itself.
        warnings=warnings,
        **fields,
    )
    check_silence_timeout(config)
    return RdzvSettings(config, **timeouts)


def _options(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each option of --rdzv-conf: its field, and the value as it was read."""
    for name, value in given.items():
        if name in IGNORED:
            continue
        typed, plain = (name, str(value)), (name.strip(QUOTES), str(value).strip(QUOTES))
        if plain != typed:
            raise ConfigError(f"--rdzv-conf {'='.join(typed)}: write it without quotes: {'='.join(plain)}")
        option = BY_NAME.get(name)
        if option is None:
            hint = OF_OTHERS.get(name) or f"use one of {', '.join(BY_NAME)}"
            raise ConfigError(f"--rdzv-conf {name}: --rdzv-backend elastic-etcd has no such option; {hint}")
        yield option.field, readers.read_as(f"--rdzv-conf {name}", option.read, str(value))


def _keep_alive(fields: dict[str, Any]) -> None:
    """What torch's names for the patience with a silent node come to."""
    interval_s, attempts = fields.pop("interval_s", None), fields.pop("attempts", None)
    if interval_s is None and attempts is None:
        return
    if interval_s is None:
        raise ConfigError("--rdzv-conf keep_alive_max_attempt needs keep_alive_interval; or use lease_ttl instead")
    if "lease_ttl_s" in fields:
        raise ConfigError("--rdzv-conf lease_ttl and keep_alive_interval say the same; leave one out")
    product_s = max(math.ceil(interval_s * (attempts or ATTEMPTS)), LEASE_TTL_MIN_S)
    fields["lease_ttl_s"] = readers.read_as("--rdzv-conf keep_alive_interval", lease_ttl, str(product_s))
