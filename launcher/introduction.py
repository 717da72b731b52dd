"""What an agent says of its network when it joins: the address and interface that it chose, and what may go wrong."""

from __future__ import annotations

from collections.abc import Mapping

from launcher import addresses, proxies
from launcher.config import Config
from launcher.container import bridge_hint, in_container
from launcher.logs import Narrator

USERS = {"NCCL": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
"""Who needs an interface, and the variable that names it."""


def introduce(narrator: Narrator, config: Config, host: str, environ: Mapping[str, str]) -> None:
    """Say once where this node is, and warn of proxies and of an address that nobody else reaches."""
    local = addresses.is_loopback(host)
    line = network_line(host, addresses.interface(host), config.nic, environ)
    (narrator.detail if local else narrator.say)(line)
    if warning := proxies.warning(environ):
        narrator.warn(warning)
    if hint := bridge_hint(host, config.servers, inside=in_container()):
        narrator.warn(hint)


def network_line(host: str, owner: str | None, nic: str, environ: Mapping[str, str]) -> str:
    """The address of this node, the interface that owns it, and those that NCCL and gloo use.

    What the user set for NCCL and gloo counts more than `nic` and than the owner.
    """
    place = f"this node is {host} on {owner}" if owner else f"this node is {host}, which no interface of it has"
    chosen = nic or owner
    users = {name: environ.get(variable) or chosen for name, variable in USERS.items()}
    if len(set(users.values())) == 1:
        used = next(iter(users.values()))
        words = f"NCCL and gloo use {used}" if used else "NCCL and gloo choose one; --nic NAME names it"
    else:
        words = ", ".join(f"{name} uses {used or 'one of its choice'}" for name, used in users.items())
    given = [variable for variable in USERS.values() if environ.get(variable) and environ.get(variable) != chosen]
    if given:
        words += f", as {' and '.join(given)} {'say' if len(given) > 1 else 'says'}"
    return f"{place}; {words}"
