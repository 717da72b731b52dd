"""Variables that route the traffic of workers: interfaces of NCCL and gloo, and proxies (pure).

The launcher's own connections use no proxy. Workers keep theirs, because scripts download data and send reports to the
outside; but the connections between workers must not use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from elastic._text import joined

INTERFACE_VARIABLES = {"NCCL": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
"""The libraries that use an interface, and the variable that names it."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
NO_PROXY = ("no_proxy", "NO_PROXY")
LOCAL = ("localhost", "127.0.0.1", "::1")
LIST_BYTES_MAX = 64 * 1024
"""A longer list is not set: Linux refuses every exec with a variable above 128 kB, including its name."""


def network_line(host: str, owner: str | None, nic: str, environ: Mapping[str, str]) -> str:
    """Describe the address of this node, the interface that owns it, and those that NCCL and gloo use.

    The user's variables for NCCL and gloo take precedence over `nic` and the owner.
    """
    place = f"this node is {host} on {owner}" if owner else f"this node is {host}, which no interface of this host has"
    chosen = nic or owner
    users = {name: environ.get(variable) or chosen for name, variable in INTERFACE_VARIABLES.items()}
    if len(set(users.values())) == 1:
        used = next(iter(users.values()))
        words = f"NCCL and gloo use {used}" if used else "NCCL and gloo choose an interface; --nic NAME selects one"
    else:
        words = ", ".join(f"{name} uses {used or 'one of its choice'}" for name, used in users.items())
    given = [
        variable
        for variable in INTERFACE_VARIABLES.values()
        if environ.get(variable) and environ.get(variable) != chosen
    ]
    if given:
        words += f", as {' and '.join(given)} {'say' if len(given) > 1 else 'says'}"
    return f"{place}; {words}"


def misnamed(environ: Mapping[str, str], interfaces: Collection[str]) -> dict[str, str]:
    """Return the variables that name an interface that does not exist, with their values."""
    given = {variable: environ.get(variable, "") for variable in INTERFACE_VARIABLES.values()}
    return {variable: wanted for variable, wanted in given.items() if not _fits(variable, wanted, interfaces)}


def _fits(variable: str, wanted: str, interfaces: Collection[str]) -> bool:
    """Return whether an interface matches. NCCL takes prefixes, exact names after "=", and exclusions after "^"."""
    if not wanted or wanted.startswith("^"):
        return True
    exact = wanted.startswith("=") or variable != INTERFACE_VARIABLES["NCCL"]
    names = [name for name in wanted.lstrip("=").split(",") if name]
    return any(one == name if exact else one.startswith(name) for one in interfaces for name in names)


def proxies(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that name a proxy, in the user's spelling."""
    return tuple(name for one in PROXY_VARIABLES for name in (one, one.upper()) if environ.get(name, "").strip())


def proxy_exceptions(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return `no_proxy` and `NO_PROXY` for workers: their values, this host, and `hosts`. Empty without a proxy."""
    if not proxies(environ):
        return {}
    given = [part.strip() for name in NO_PROXY for part in environ.get(name, "").split(",")]
    whole = ",".join(dict.fromkeys(part for part in (*given, *LOCAL, *hosts) if part))
    return dict.fromkeys(NO_PROXY, whole) if len(whole.encode()) <= LIST_BYTES_MAX else {}


def proxy_warning(environ: Mapping[str, str]) -> str:
    """Return the warning about proxies in one sentence; "" without a proxy."""
    names = proxies(environ)
    if not names:
        return ""
    verb = "names a proxy" if len(names) == 1 else "name a proxy"
    return (
        f"{joined(names)} {verb}: elastic-launch does not use it; workers do, except for the nodes of this job and "
        f"etcd (added to no_proxy); if workers stall while they wait for each other: unset {' '.join(names)}"
    )
