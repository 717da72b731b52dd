"""Opens a node: its ports, its registration record, and the job spec that it would write."""

from __future__ import annotations

import secrets
import time
from contextlib import AbstractContextManager, AsyncExitStack

import msgspec

from elastic.core.admission import NodeIdentity
from elastic.core.agent.core import AgentCore
from elastic.core.agent.state import AgentState, Timeouts
from elastic.core.keys import JobKeys
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import JobMode, JobSpec, Member
from elastic.core.ps.model import PsJobSpec
from elastic.core.run_deadline import KILL_S
from launcher.agent.versions import own_versions
from launcher.config.config import Config
from launcher.config.flags import of_scope
from launcher.config.ps_layout import static_hosts, wanted_ports
from launcher.config.setting import Scope
from launcher.net.addresses import only_here
from launcher.net.endpoints import parse_host_port
from launcher.net.ports import NodePorts, node_ports
from launcher.peers.listener import PeerListener
from launcher.system.clock import boottime


async def open_node(config: Config, node: str, host: str, closing: AsyncExitStack) -> tuple[AgentCore, PeerListener]:
    """Return the core and the listener of a new node; `closing` closes it and releases the ports of the node."""
    # Several nodes of one host that have separate loopback addresses can each hold the control port there.
    listening = host if only_here(host, static_hosts(config)) else ""
    held = closing.enter_context(hold_ports(config, host, listening))
    listener = PeerListener(listening, config.job_id, node, held.link)
    closing.callback(listener.close)
    return AgentCore(initial_state(config, node, host, held, boottime())), listener


def hold_ports(config: Config, own: str, listening: str) -> AbstractContextManager[NodePorts]:
    """Hold every port of the node `own`, on the address `listening` ("": on all)."""
    roles = config.roles
    if roles is None:
        return node_ports((0,) * config.slots, within=config.port_range, control=config.ctrl_port, host=listening)
    meets = not roles.servers or parse_host_port(roles.servers[0])[0] == own  # Server 0 may be here.
    control = roles.http_port if meets else 0
    wanted = wanted_ports(roles, own)
    return node_ports(wanted, within=config.port_range, control=control, flag="--http-port", host=listening)


def initial_state(config: Config, node: str, host: str, held: NodePorts, now: float) -> AgentState:
    """Return the state of this node's core at its start. `now` is the agent's clock, in seconds."""
    versions = own_versions(config)
    spec = JobSpec(
        mode=JobMode(config.run_mode),
        versions=versions,
        **{flag.field: getattr(config, flag.field) for flag in of_scope(Scope.JOB)},
    )
    if config.roles is not None:
        spec = PsJobSpec(**msgspec.structs.asdict(spec), layout=config.roles)
    member = Member(
        host=host,
        slots=len(held.workers),
        masters=held.masters,
        ports=held.workers,
        versions=versions,
        link=held.link,
    )
    me = NodeIdentity(
        node,
        member,
        spec,
        secrets.token_hex(8),
        secret=secrets.token_hex(32),
        force=config.force,
        rerun=config.rerun,
        allow_mismatch=config.allow_mismatch,
        np_given=config.np_given,
    )
    limits = Timeouts(config.stop_timeout_s, config.failure_stop_timeout_s, join_timeout_s=config.join_timeout_s)
    facts = AgentState(
        me, JobKeys(config.job_id, config.key_prefix), limits, DecisionPolicy(node, kill_s=2 * KILL_S), now=now
    )
    facts.wall_at_zero = time.time() - now
    facts.registration.prepared = False
    facts.leaving.idle_since = facts.entered_at = now
    return facts
