"""Every flag of `elastic-launch`, from the settings of `Config`, and the flags that other commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from launcher.config.config import Config
from launcher.config.setting import (
    BASE,
    COLLECTIVE,
    ELASTIC,
    HELP_GROUPS,
    LOGS,
    SERVERS,
    WORKERS,
    Flag,
    Scope,
    flags_of,
)

HELP_ORDER: Final[Mapping[str, str]] = {
    BASE: "gpus nproc_per_node log_dir local_nodes run_mode isolate_gpus nic port_range no_python",
    COLLECTIVE: "ips ctrl_port serve_port",
    SERVERS: "server_num worker_num servers workers heter_worker_num heter_workers http_port",
    ELASTIC: "np elastic_server job_id host serve standalone spot force rerun allow_mismatch lease_ttl silence_timeout "
    "join_window join_timeout connect_timeout scale_up_interval etcd_outage_timeout job_secret_file print_secret "
    "etcd_user etcd_password_file allow_plaintext_password etcd_ca etcd_cert etcd_key key_prefix",
    WORKERS: "max_restarts checkpoint_dir resume_from hang_timeout partition_timeout host_cooldown stop_timeout "
    "failure_stop_timeout save_timeout fatal_exit_codes retry_startup_errors restore_step allow_rollback memory_limit "
    "check_nan preload no_preload no_learn no_torch_patch",
    LOGS: "console quiet verbose no_live metrics_port log_format log_overwrite log_max_bytes log_rotate",
}
"""The flags of each group of the help: what most jobs use comes first, and what belongs together stays together."""


def _place(flag: Flag) -> tuple[int, int]:
    return HELP_GROUPS.index(flag.group), HELP_ORDER[flag.group].split().index(flag.name)


FLAGS: Final = tuple(sorted((flag for group in Config.__bases__ for flag in flags_of(group)), key=_place))
"""Every flag, in the order of the help."""
BY_NAME: Final[Mapping[str, Flag]] = {flag.name: flag for flag in FLAGS}
BY_OLD_NAME: Final[Mapping[str, Flag]] = {flag.old_name: flag for flag in FLAGS if flag.old_name}


def of_scope(scope: Scope) -> tuple[Flag, ...]:
    """The flags of all settings that concern `scope`."""
    return tuple(flag for flag in FLAGS if scope in flag.scope)


JOB_FLAGS: Final = tuple(flag.name for flag in of_scope(Scope.STORE))
"""The flags by which other commands find a job."""
STORE_FLAGS: Final = tuple(name for name in JOB_FLAGS if name != "job_id")
"""The flags by which they find etcd."""
