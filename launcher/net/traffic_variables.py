"""Variables that say which way the traffic of workers takes: interfaces of NCCL and gloo, and proxies (pure).

The launcher's own connections use no proxy. Workers keep theirs, because scripts download data and report to the
outside; but what they say to each other must not go there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from elastic._text import joined

INTERFACE_VARIABLES = {"NCCL": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
"""Who needs an interface, and the variable that names it."""
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
NO_PROXY = ("no_proxy", "NO_PROXY")
LOCAL = ("localhost", "127.0.0.1", "::1")
LIST_BYTES_MAX = 64 * 1024
"""Above this a list is not set: Linux refuses every exec with a variable above 128 kB, name included."""


def network_line(host: str, owner: str | None, nic: str, environ: Mapping[str, str]) -> str:
    """The address of this node, the interface that owns it, and those that NCCL and gloo use.

    What the user set for NCCL and gloo counts more than `nic` and than the owner.
    """
    place = f"this node is {host} on {owner}" if owner else f"this node is {host}, which no interface of it has"
    chosen = nic or owner
    users = {name: environ.get(variable) or chosen for name, variable in INTERFACE_VARIABLES.items()}
    if len(set(users.values())) == 1:
        used = next(iter(users.values()))
        words = f"NCCL and gloo use {used}" if used else "NCCL and gloo choose one; --nic NAME names it"
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
    """The variables that name an interface which is not there, with what they say."""
    given = {variable: environ.get(variable, "") for variable in INTERFACE_VARIABLES.values()}
    return {variable: wanted for variable, wanted in given.items() if not _fits(variable, wanted, interfaces)}


def _fits(variable: str, wanted: str, interfaces: Collection[str]) -> bool:
    """Tell whether an interface fits. NCCL takes prefixes, exact names after "=", and what is not there after "^"."""
    if not wanted or wanted.startswith("^"):
        return True
    exact = wanted.startswith("=") or variable != INTERFACE_VARIABLES["NCCL"]
    names = [name for name in wanted.lstrip("=").split(",") if name]
    return any(one == name if exact else one.startswith(name) for one in interfaces for name in names)


def proxies(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that name a proxy, as they are written."""
    return tuple(name for one in PROXY_VARIABLES for name in (one, one.upper()) if environ.get(name, "").strip())


def proxy_exceptions(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """`no_proxy` and `NO_PROXY` for workers: what is there, this machine, and `hosts`. Empty if no proxy is set."""
    if not proxies(environ):
        return {}
    given = [part.strip() for name in NO_PROXY for part in environ.get(name, "").split(",")]
    whole = ",".join(dict.fromkeys(part for part in (*given, *LOCAL, *hosts) if part))
    return dict.fromkeys(NO_PROXY, whole) if len(whole.encode()) <= LIST_BYTES_MAX else {}


def proxy_warning(environ: Mapping[str, str]) -> str:
    """What a person should know, in one sentence; "" if no proxy is set."""
    names = proxies(environ)
    if not names:
        return ""
    verb = "names a proxy" if len(names) == 1 else "name a proxy"
    return (
        f"{joined(names)} {verb}: elastic-launch does not use it, workers do, but not for the nodes of this job and "
        f"etcd (they are added to no_proxy); if workers wait for each other for long: unset {' '.join(names)}"
    )
