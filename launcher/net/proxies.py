"""Proxies in the environment (pure): what they mean for a job, and how its own hosts are kept out of them.

The launcher's own connections use none. Workers keep theirs, because scripts download data and report to the outside;
but what they say to each other must not go there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastic._text import joined

VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
EXCEPTIONS = ("no_proxy", "NO_PROXY")
LOCAL = ("localhost", "127.0.0.1", "::1")
LIST_BYTES_MAX = 64 * 1024
"""Above this the list is left as it was: Linux takes no variable above 128 kB."""


def proxies(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that name a proxy, as they are written."""
    return tuple(name for one in VARIABLES for name in (one, one.upper()) if environ.get(name, "").strip())


def exceptions(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """`no_proxy` and `NO_PROXY` for workers: what is there, this machine, and `hosts`. Empty if no proxy is set."""
    if not proxies(environ):
        return {}
    given = [part.strip() for name in EXCEPTIONS for part in environ.get(name, "").split(",")]
    whole = ",".join(dict.fromkeys(part for part in (*given, *LOCAL, *hosts) if part))
    return dict.fromkeys(EXCEPTIONS, whole) if len(whole.encode()) <= LIST_BYTES_MAX else {}


def warning(environ: Mapping[str, str]) -> str:
    """What a person should know, in one sentence; "" if no proxy is set."""
    names = proxies(environ)
    if not names:
        return ""
    verb = "names a proxy" if len(names) == 1 else "name a proxy"
    return (
        f"{joined(names)} {verb}: elastic-launch does not use it, workers do, but not for the nodes of this job and "
        f"etcd (they are added to no_proxy); if workers wait for each other for long: unset {' '.join(names)}"
    )
