"""Which entry of a list of hosts this node is.

The list is the same on every node, so that the node has to find itself in it: by the name it was given, otherwise by
the addresses of its own network interfaces.
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
"""Names are looked up side by side, so that one that is not known does not hold up the others."""
NAMED_MAX = 16
"""So many entries of a list are named in a message."""


def own_entry(
    hosts: Sequence[str], host: str, *, flag: str, source: str, is_hint: bool = False, required: bool = True
) -> str:
    """The entry that is this node, exactly as it is written in the list.

    `host` is the name that the node was given (by `source`), "" if it was given none; it is an entry itself, or has
    an address of one. Without it the entry counts that has an address of this machine, or else begins with its name;
    so it does where `host` is a hint that fits no entry. `flag` is where the list came from. Raises `ConfigError` when
    several entries fit, and when none does; if none is `required`, the answer is `host` then.
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
    if by_address and not matching:  # A name may not resolve yet, but this machine knows what it is called.
        hostname = socket.gethostname().partition(".")[0].lower()
        matching = [entry for entry in hosts if as_ip(entry) is None and entry.partition(".")[0].lower() == hostname]
    if len(matching) == 1:
        return matching[0]
    if matching and by_address:
        raise ConfigError(
            f"{joined(matching)} of {flag} {shown(hosts)} are all this machine; say with --host which of them this "
            "node is"
        )
    if matching:
        raise ConfigError(
            f"{source} {host} is the same machine as {joined(matching)} of {flag} {shown(hosts)}; write it as there"
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
        f"correct the list, or say with --host which entry this node is"
    )


def shown(hosts: Sequence[str]) -> str:
    """The list for a message, shortened if it is long."""
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
    """The host that serves: the first in the order of text, the same for every order of the list."""
    return min(hosts)


def job_name(hosts: Sequence[str], script: str) -> str:
    """A name that every node makes of the same hosts, in whatever order, and of the same script, in whatever folder.

    It is the script's name and the hosts, or their digest if they are many. Another set of hosts, or another script, is
    another job, so that no node of one job comes into another.
    """
    ordered = [re.sub(r"\.(py|pyc|pyz|sh)$", "", script.rstrip("/").rpartition("/")[2]), *sorted(hosts)]
    name = "_".join(re.sub(r"[^A-Za-z0-9.-]", "-", part) for part in ordered)
    if len(name) <= NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(",".join(ordered).encode()).hexdigest()[:12]
    return f"{len(hosts)}-hosts-{digest}"


def unreachable_hint(host: str) -> str:
    """What to look at when the host that serves was waited for in vain."""
    return f"does the same command run on {host}, with the same list of hosts?"


NAME_LENGTH_MAX = 100
"""A job that is named after all its hosts has no longer name than this."""
