"""Which requests the page answers, by the headers that a browser sends and a page of another site cannot change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from launcher.net.endpoints import as_ip

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
HOST: Final = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII
)
"""The header `Host`: a name, an IPv4 address or an IPv6 address in brackets, and a port or none."""
OWN: Final = ("same-origin", "none")
"""Values of the header `Sec-Fetch-Site` if the page itself sends the request, or a user has typed its address."""


def host_of(header: str) -> str:
    """The name or address that a header `Host` names, in small letters; "" if it names none.

    Its port may be another than ours: that of a tunnel.
    """
    if (found := HOST.fullmatch(header)) is None:
        return ""
    if found["v6"] is None:
        return found["name"].lower()
    return str(as_ip(found["v6"]) or "") if ":" in found["v6"] else ""


def is_of_another_site(headers: Mapping[str, str], *, document: bool) -> bool:
    """Return whether a page of another site made a browser send this request.

    If a user follows a link to one of our documents (`document`), the user sends that request, not the other page.
    Browsers send these headers only over HTTPS and to loopback addresses; other programs do not send them.
    """
    if headers.get("Sec-Fetch-Site", "none") in OWN:
        return False
    follows = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return not (document and follows)
