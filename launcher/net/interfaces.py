"""Which network interfaces NCCL and gloo use (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

USERS = {"NCCL": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
"""Who needs an interface, and the variable that names it."""


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


def misnamed(environ: Mapping[str, str], interfaces: Collection[str]) -> dict[str, str]:
    """The variables that name an interface which is not there, with what they say."""
    given = {variable: environ.get(variable, "") for variable in USERS.values()}
    return {variable: wanted for variable, wanted in given.items() if not _fits(variable, wanted, interfaces)}


def _fits(variable: str, wanted: str, interfaces: Collection[str]) -> bool:
    """Tell whether an interface fits. NCCL takes prefixes, exact names after "=", and what is not there after "^"."""
    if not wanted or wanted.startswith("^"):
        return True
    exact = wanted.startswith("=") or variable != USERS["NCCL"]
    names = [name for name in wanted.lstrip("=").split(",") if name]
    return any(one == name if exact else one.startswith(name) for one in interfaces for name in names)
