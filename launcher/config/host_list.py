"""Which entry of a list of hosts this node is.

The list is the same on every node, so each node has to find its own entry: by the name in --host or POD_IP, otherwise
by the addresses of its network interfaces.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from elastic._text import joined, shortened
from elastic.errors import ConfigError
from launcher.net import addresses
from launcher.net.endpoints import as_ip

LOOKUPS_AT_ONCE = 32
"""Names are resolved in parallel, so that an unknown one does not delay the others."""
NAMED_MAX = 16
"""The most entries of a list that a message names."""


def own_entry(
    hosts: Sequence[str], host: str, *, flag: str, source: str, is_hint: bool = False, required: bool = True
) -> str:
    """The entry of this node, exactly as it is written in the list.

    `host` is the name of the node (from `source`), "" if it has none: an entry, or a name with an address of one.
    Without `host`, or if it is a hint that matches no entry, the entry with an address of this machine counts, or else
    the one that begins with its name. `flag` names the list in messages. Raises `ConfigError` if several entries match,
    and if none does, unless no match is `required`: the result is then `host`.
    """
    if host in hosts or not hosts:
        return host
    resolved = _resolved(hosts)
    wanted = set(addresses.resolve(host)) if host else set()
    matching = [entry for entry in hosts if entry.lower() == host.lower() or wanted & set(resolved[entry])]
    by_address = not matching and (is_hint or not host)
    if by_address:
        own = addresses.own_addresses()
        matching = [
            entry for entry in hosts if any(address.is_loopback or address in own for address in resolved[entry])
        ]
    if by_address and not matching:  # A name may not resolve yet, but this machine knows its host name.
        hostname = socket.gethostname().partition(".")[0].lower()
        matching = [entry for entry in hosts if as_ip(entry) is None and entry.partition(".")[0].lower() == hostname]
    if len(matching) == 1:
        return matching[0]
    if matching and by_address:
        raise ConfigError(
            f"{joined(matching)} of {flag} {shown(hosts)} are all addresses of this machine; choose one with --host"
        )
    if matching:
        raise ConfigError(
            f"{source} {host} matches {joined(matching)} of {flag} {shown(hosts)}; write it as in the list"
        )
    if not required:
        return host
    if host:
        raise ConfigError(
            f"{source} {host} is not in {flag} {shown(hosts)}{_unknown(resolved)}; use one of that list"
            f"{_addresses('this machine has ')}"
        )
    raise ConfigError(
        f"{flag} {shown(hosts)} has no address of this machine{_addresses('')}{_unknown(resolved)}; "
        f"correct the list, or name the entry of this node with --host"
    )


def shown(hosts: Sequence[str]) -> str:
    """The list as text for a message, shortened if it is long."""
    return shortened(hosts, NAMED_MAX, ",")


def _resolved(hosts: Sequence[str]) -> dict[str, tuple[addresses.Address, ...]]:
    with ThreadPoolExecutor(LOOKUPS_AT_ONCE) as pool:
        return dict(zip(hosts, pool.map(addresses.resolve, hosts), strict=True))


def _unknown(resolved: dict[str, tuple[addresses.Address, ...]]) -> str:
    names = [name for name, known in resolved.items() if not known]
    return f" ({shown(names)} cannot be resolved)" if names else ""


def _addresses(before: str) -> str:
    own = addresses.candidates()
    return f" ({before}{', '.join(own)})" if own else ""


def first_host(hosts: Sequence[str]) -> str:
    """The host that starts etcd: the first one when names are sorted, whatever the order of the list."""
    return min(hosts)


def job_name(hosts: Sequence[str], script: str) -> str:
    """A job ID from the hosts, in any order, and the script's name, the same on every node.

    It is the script's name and the hosts, or their digest if there are many. Other hosts or another script result in
    another job, so that no node joins a job that is not its own.
    """
    ordered = [re.sub(r"\.(py|pyc|pyz|sh)$", "", script.rstrip("/").rpartition("/")[2]), *sorted(hosts)]
    name = "_".join(re.sub(r"[^A-Za-z0-9.-]", "-", part) for part in ordered)
    if len(name) <= NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(",".join(ordered).encode()).hexdigest()[:12]
    return f"{len(hosts)}-hosts-{digest}"


def unreachable_hint(host: str) -> str:
    """What to check if the host that starts etcd did not answer in time."""
    return f"does the same command run on {host}, with the same list of hosts?"


NAME_LENGTH_MAX = 100
"""The longest job ID that names all hosts."""
