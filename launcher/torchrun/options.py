"""torchrun's flags for the plugin: --rdzv-endpoint, --rdzv-id, --nnodes, --local-addr and --rdzv-conf.

Every mistake is a `ConfigError` of one line that names the option and the fix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from elastic.core.model import JOIN_WINDOW_MAX_S, JobMode, Np
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
    """Return the option with the name, the values and the default of a flag of elastic-launch."""
    flag = FLAGS[name]
    shown = duration_text(flag.default) if flag.metavar == METAVAR else "0" if flag.switch else str(flag.default)
    return Option(name, flag.field, flag.read or readers.boolean, shown, meaning, name)


OPTIONS: Final = (
    Option("join_timeout", "join_timeout_s", duration(1), "10m", "how long a round may take to form; a spare node "
           "next to a running world may wait longer"),
    Option("last_call_timeout", "join_window_s", duration(0), "3s", "how long to wait for more nodes after the last "
           "one joined, at most 15s in all; with --nnodes MAX there is nothing to wait for", "join_window"),
    Option("close_timeout", "close_timeout_s", duration(1), "30s", "time limit for agreeing that the job has ended"),
    _as_flag("connect_timeout", "how long to try to reach etcd at the start"),
    _as_flag("lease_ttl", "a node that does not renew its lease for this long has failed; one whose process exited is "
             "detected at once"),
    _as_flag("silence_timeout", "evict a node that has sent no heartbeat for this long, as soon as other nodes confirm "
             "that they cannot reach it; 0.1s or more and less than lease_ttl; 0 turns heartbeats off, so that only "
             "lease_ttl counts"),
    Option("keep_alive_interval", "interval_s", duration(0.1), "", "torch's name: lease_ttl = keep_alive_interval x "
           "keep_alive_max_attempt"),
    Option("keep_alive_max_attempt", "attempts", readers.count(1, 1000), "3", "see keep_alive_interval"),
    Option("scale_up_interval", "scale_up_interval_s", duration(0), "1m", "joining nodes are added to a running "
           "job at most once in this time", "scale_up_interval"),
    _as_flag("etcd_outage_timeout", "how long nodes that reach each other may continue while etcd is unavailable"),
    _as_flag("key_prefix", "prefix of all keys in etcd"),
    _as_flag("etcd_ca", "certificate of the authority that signed etcd's certificate"),
    _as_flag("etcd_cert", "client certificate, if etcd requires one"),
    _as_flag("etcd_key", "its key"),
    _as_flag("etcd_user", "the etcd user"),
    _as_flag("etcd_password_file", "a file with the password, one line"),
    _as_flag("allow_plaintext_password", "1 sends the password even to an etcd without TLS on another host, where "
             "anyone on the network path can read it; with 0 that is refused"),
    _as_flag("job_secret_file", "a file with the secret of an etcd that elastic-launch serves"),
    _as_flag("nic", "the network interface whose address the other nodes use"),
    _as_flag("rerun", "1 runs a job again that has ended"),
    _as_flag("allow_mismatch", "1 joins although versions differ"),
    _as_flag("verbose", "1 prints more about what the agent does"),
    _as_flag("quiet", "1 prints only warnings and errors"),
)  # fmt: skip
BY_NAME: Final = {option.name: option for option in OPTIONS}
OLD_NAMES: Final = {"grow_every": "scale_up_interval", "store_outage_limit": "etcd_outage_timeout"}
"""Earlier names of options, accepted until the next minor release."""
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
"""Options of torch's own backends, and near misses, with the fix."""
IGNORED: Final = ("timeout", "rank")
"""Keys that torchrun itself adds, whatever was typed."""
ATTEMPTS = 3
QUOTES: Final = "'\""
"""Quotes that torch leaves in place if the shell did not remove them."""


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
    """Read the settings. `nodes` are MIN and MAX; `given` is --rdzv-conf, with what torchrun adds to it.

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
    if "join_window_s" in fields:
        fields["join_window_s"] = min(fields["join_window_s"], JOIN_WINDOW_MAX_S)
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
        restarts_max=readers.RESTARTS_MAX,  # torchrun counts them itself, separately in each agent.
        host_cooldown_s=0.0,  # The plugin does not learn whose worker failed on its own.
        warnings=warnings,
        **fields,
    )
    check_silence_timeout(config)
    return RdzvSettings(config, **timeouts)


def _options(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each option of --rdzv-conf: its field, and the value as it was read."""
    for name, value in given.items():
        if name in IGNORED:
            continue
        typed, plain = (name, str(value)), (name.strip(QUOTES), str(value).strip(QUOTES))
        if plain != typed:
            raise ConfigError(f"--rdzv-conf {'='.join(typed)}: write it without quotes: {'='.join(plain)}")
        option = BY_NAME.get(OLD_NAMES.get(name, name))
        if option is None:
            hint = OF_OTHERS.get(name) or f"use one of {', '.join(BY_NAME)}"
            raise ConfigError(f"--rdzv-conf {name}: --rdzv-backend elastic-etcd has no such option; {hint}")
        yield option.field, readers.read_as(f"--rdzv-conf {name}", option.read, str(value))


def _keep_alive(fields: dict[str, Any]) -> None:
    """Convert torch's names for the timeout of a silent node."""
    interval_s, attempts = fields.pop("interval_s", None), fields.pop("attempts", None)
    if interval_s is None and attempts is None:
        return
    if interval_s is None:
        raise ConfigError("--rdzv-conf keep_alive_max_attempt needs keep_alive_interval; or use lease_ttl instead")
    if "lease_ttl_s" in fields:
        raise ConfigError("--rdzv-conf lease_ttl and keep_alive_interval set the same; leave one out")
    product_s = max(math.ceil(interval_s * (attempts or ATTEMPTS)), LEASE_TTL_MIN_S)
    fields["lease_ttl_s"] = readers.read_as("--rdzv-conf keep_alive_interval", lease_ttl, str(product_s))
