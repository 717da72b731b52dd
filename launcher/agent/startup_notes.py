"""What an agent logs when it joins: the address, interface and GPUs that it chose, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from launcher.agent import node_id
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.logs.logger import AgentLog
from launcher.net.addresses import bridge_hint, in_container, interface_among, is_loopback, only_here
from launcher.net.traffic_variables import misnamed, network_line, proxy_warning
from launcher.system import node_lock
from launcher.system.folder_checks import CHECKPOINTS, folder_warning


def log_startup_notes(
    agent_log: AgentLog, config: Config, host: str, environ: Mapping[str, str], known: Sequence[str] = ()
) -> None:
    """Log the address of this node, and the warnings of those checks of the doctor that are quick.

    `known` are the results of earlier checks, "" for none.
    """
    also = [node for node in node_lock.held(config.job_id) if node_id.is_of(node, host)]
    if also and not is_loopback(host):
        others = f"nodes {', '.join(also)} run" if len(also) > 1 else f"node {also[0]} runs"
        agent_log.info(
            f"{others} on this host in the same job: this command adds another node, which uses the same GPUs"
        )
    hosts = static_hosts(config)
    local = only_here(host, hosts)
    line = network_line(host, interface_among(host, hosts), config.nic, environ)
    (agent_log.debug if local else agent_log.info)(line)
    if warning := proxy_warning(environ):
        agent_log.warning(warning)
    for variable, wanted in misnamed(environ, psutil.net_if_addrs()).items():
        agent_log.warning(
            f"{variable} is {wanted}, which matches no interface of this host; use one that ip link lists, or unset it"
        )
    if hint := bridge_hint(host, config.servers, inside=in_container()):
        agent_log.warning(hint)
    checkpoints = folder_warning(CHECKPOINTS, Path(config.checkpoint_dir))
    for warning in filter(None, (*known, node_lock.choose_lock_folder().note, checkpoints)):
        agent_log.warning(warning)
    gpus = config.gpu_ids[: config.slots]
    if gpus and (config.shown_gpus or "CUDA_VISIBLE_DEVICES" in environ):
        agent_log.info(f"GPUs of this node, in the order of the local ranks: {', '.join(gpus)}")
