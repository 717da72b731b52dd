"""The lists of every worker's address in a generation, as files for users and for workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elastic._disk.replace import replace_file

ENDPOINTS_KEPT = 50
"""Number of endpoint lists that are kept; a job that runs for months has thousands of generations."""


def write_endpoints(log_dir: Path, g: int, endpoints: Sequence[str], servers: Sequence[str] = ()) -> None:
    """Write the endpoints of a generation as `write_lists` does, in a directory that is created if it is missing."""
    log_dir.mkdir(parents=True, exist_ok=True)
    write_lists(log_dir, g, endpoints, servers)


def write_lists(folder: Path, g: int, endpoints: Sequence[str], servers: Sequence[str] = ()) -> None:
    """Write the endpoints of a generation, in rank order, as the newest and under its number.

    Parameter servers are listed below the workers, under the name of Paddle's list of them.
    `endpoints` are as `launcher.net.endpoints.join_host_port` writes them, IPv6 in brackets.
    A reader sees the old list or the new one, never a part. The numbered ones of the newest `ENDPOINTS_KEPT`
    generations are kept. Raises `OSError`.
    """
    below = ("PADDLE_PSERVERS_IP_PORT_LIST:", *servers) if servers else ()
    text = "".join(f"{line}\n" for line in ("PADDLE_TRAINER_ENDPOINTS:", *endpoints, *below))
    for name in (f"endpoints.{g}.log", "endpoints.log"):
        replace_file(folder / name, text.encode())
    for path in folder.glob("endpoints.*.log"):
        number = path.name.split(".")[1]
        if number.isascii() and number.isdigit() and int(number) <= g - ENDPOINTS_KEPT:
            path.unlink(missing_ok=True)
