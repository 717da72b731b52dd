"""Readers of flag values: one function for each kind of text, which raises ValueError with one clear sentence."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from elastic.core.keys import JOB_ID
from elastic.core.model import NP_UNLIMITED, Np
from elastic.errors import ConfigError
from launcher.net.endpoints import (
    PORT_MAX,
    as_ip,
    bare_host,
    check_host,
    join_host_port,
    parse_endpoint,
    parse_host_port,
)

T = TypeVar("T")

NODES_MAX = NP_UNLIMITED - 1
"""The most nodes of a job; a higher number is a typing error."""
LOCAL_NODES_MAX = 64
SLOTS_MAX = 1024
RESTARTS_MAX = 1_000_000
SERVERS_MAX = 64
SERVE_PORT = 2379
"""etcd's own port."""
PS_PORT_EXAMPLE = 6170
"""The port of a parameter server in the examples of Paddle's documentation."""
METRICS_HOST = "127.0.0.1"
"""The address on which an agent serves metrics, unless --metrics-port names one."""
METRICS_PORT_EXAMPLE = 9401
PREFIX_LENGTH_MAX = 512
STEP_MAX = 10**12 - 1
SIZE_MAX = 1 << 50
"""Bytes; no node has more memory."""

LOG_BYTES_MAX = 1_000_000_000
"""The largest size of one worker's log, unless --log-max-bytes sets another one. It holds a line of 100 bytes each
second for four months, and eight workers that never stop writing leave room on the smallest disks of training machines.
"""
LOG_BYTES_LOWEST = 1 << 20
LOG_ROTATE_MAX = 99
"""Each rotated file repeats the end of the one before it, which should remain a small part of the file."""

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,6})?"
"""The number in an amount of memory, without its unit."""

_SWITCH_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class StoreEndpoints(NamedTuple):
    """The store's endpoints, each `host:port`, whether they speak TLS, and whether one was written with http://."""

    endpoints: tuple[str, ...]
    tls: bool
    plain: bool = False


def read_as(source: str, read: Callable[[str], T], text: str) -> T:
    """The value that `read` returns for a text; a `ConfigError` about a wrong one begins with `source`."""
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap a reader for argparse, with the same messages for wrong values."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return typed


def np(text: str) -> Np:
    """N, N+ or MIN:MAX."""
    match = re.fullmatch(r"([0-9]{1,9})(?:(\+)|:([0-9]{1,9}))?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is neither a number of nodes (2, or 2+) nor a range (1:4)")
    low, more, high = int(match[1]), match[2] or "", int(match[3] or match[1])
    if max(low, high) > NODES_MAX:
        raise ValueError(f"{text!r} is more than {NODES_MAX} nodes")
    if low < 1:
        least = f"1{more}" if match[3] is None else f"1:{max(high, 1)}"
        raise ValueError(f"{text!r}: a job has at least 1 node; use {least}")
    if high < low:
        raise ValueError(
            f"{text!r}: the range is MIN:MAX; use {high}:{low}" if high else f"{text!r}: MAX is at least MIN"
        )
    if match[3] is None:
        return Np(low=1, high=NP_UNLIMITED if more else high, first=high)
    return Np(low=low, high=high, first=low)


def nproc(text: str) -> int | str:
    """A number of workers, or one of the words auto, gpu, cpu."""
    if text in ("auto", "gpu", "cpu"):
        return text
    return count(1, SLOTS_MAX)(text)


def count(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,12}", text.strip()):
            raise ValueError(f"{text!r} is not a whole number")
        value = int(text)
        if value < low:
            raise ValueError(f"must be {low} or more, not {value}")
        if value > high:
            raise ValueError(f"must be {high} or less, not {value}")
        return value

    return read


def servers(text: str) -> StoreEndpoints:
    """The endpoints of etcd, with commas between them, each with or without http:// or https://."""
    endpoints: list[str] = []
    schemes: set[str] = set()
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise ValueError(f"{text!r}: an endpoint is missing; write host:2379, more of them with commas")
        scheme, mark, address = part.rpartition("://")
        if "@" in address:
            raise ValueError(
                "leave user and password out of the address, which every list of processes shows; use --etcd-user "
                "with --etcd-password-file or ELASTIC_ETCD_PASSWORD"
            )
        if mark and scheme not in ("http", "https"):
            raise ValueError(f"{part!r}: an endpoint begins with http://, https:// or the host")
        if mark and urlsplit(part).path.strip("/"):
            raise ValueError(f"{part!r}: an endpoint has no path; --key-prefix sets the prefix of the keys")
        schemes.add(scheme)
        host_name, port = parse_endpoint(address.rstrip("/") if mark else address)
        endpoint = join_host_port(host_name, port)
        if endpoint not in endpoints:
            endpoints.append(endpoint)
    if "https" in schemes and len(schemes) > 1:
        raise ValueError("all endpoints use https:// or none does")
    if len(endpoints) > SERVERS_MAX:
        raise ValueError(f"{len(endpoints)} endpoints are more than {SERVERS_MAX}")
    return StoreEndpoints(tuple(endpoints), tls="https" in schemes, plain="http" in schemes)


def serve(text: str) -> str:
    """Read an address of this machine, or all (0.0.0.0, ::), with or without the port on which etcd listens."""
    address, number = parse_host_port(text.strip())
    return join_host_port(address, number or SERVE_PORT)


def job_id(text: str) -> str:
    """The name of a job."""
    if not JOB_ID.fullmatch(text) or not text.strip("."):
        raise ValueError(f"{text!r}: a job ID has 1 to 128 letters, digits, '.', '_' or '-', and not dots alone")
    return text


def host(text: str) -> str:
    """A host name or an address; IPv6 with or without brackets."""
    bare = bare_host(text.strip())
    try:
        check_host(bare)
    except ValueError as error:
        raise ValueError(f"{error}; leave out scheme and port") from None
    return bare


def hosts(text: str) -> tuple[str, ...]:
    """Host names and addresses with commas between them, each once, blanks allowed."""
    if not all(part.strip() for part in text.split(",")):
        raise ValueError(f"{text!r}: a host is missing; write a,b without an extra comma")
    names = tuple(host(part.strip()) for part in text.split(","))
    seen: dict[str, str] = {}
    for name in names:
        same = str(as_ip(name) or name.lower())
        if same in seen:
            also = f" (also as {seen[same]})" if seen[same] != name else ""
            raise ValueError(f"{name} appears twice{also}; name each host once")
        seen[same] = name
    return names


def port(text: str) -> int:
    """A port."""
    return count(1, PORT_MAX)(text)


def metrics_port(text: str) -> tuple[str, int] | None:
    """A port, on loopback alone, or an address of this machine and a port; None for 0: no port is opened."""
    text = text.strip()
    if re.fullmatch("0+", text):
        return None
    if ":" not in text:
        return METRICS_HOST, port(text)
    return parse_endpoint(text, example=METRICS_PORT_EXAMPLE)


def port_range(text: str) -> tuple[int, int]:
    """LOW:HIGH, both inside."""
    match = re.fullmatch(r"([0-9]{1,5}):([0-9]{1,5})", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not LOW:HIGH; write 35000:35099")
    low, high = port(match[1]), port(match[2])
    if high < low:
        raise ValueError(f"{text!r}: the range is LOW:HIGH; use {high}:{low}")
    return low, high


def nic(text: str) -> str:
    """The name of a network interface."""
    if not re.fullmatch(r"[^\s/:]{1,15}", text):
        raise ValueError(f"{text!r} is not the name of a network interface; ip link lists them")
    return text


def gpus(text: str) -> tuple[str, ...]:
    """GPUs by number, UUID or MIG ID, separated by commas, each once, blanks allowed."""
    listed = tuple(part.strip() for part in text.split(","))
    for gpu in listed:
        if not gpu:
            raise ValueError(f"{text!r}: a GPU is missing; write 0,1 without an extra comma")
        if not re.fullmatch(r"[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Za-z/-]+", gpu):
            raise ValueError(f"{gpu!r} is not a GPU; write numbers (0,1) or UUIDs (GPU-...) as in nvidia-smi -L")
        if listed.count(gpu) > 1:
            raise ValueError(f"GPU {gpu} appears twice; name each GPU once")
    return listed


def endpoint_list(text: str) -> tuple[str, ...]:
    """HOST:PORT with commas between them, each once, blanks allowed."""
    return _processes(text, parse_endpoint)


def worker_list(text: str) -> tuple[str, ...]:
    """Read HOST:PORT or HOST, separated by commas, blanks allowed; a host without a port may be listed more than once.

    An IPv6 address with a port has brackets; one without a port is returned without brackets.
    """
    return _processes(text, parse_host_port)


def _processes(text: str, read: Callable[..., tuple[str, int]]) -> tuple[str, ...]:
    processes: list[str] = []
    for part in text.split(","):
        host_name, number = read(part.strip(), example=PS_PORT_EXAMPLE)
        process = join_host_port(host_name, number) if number else host_name
        if number and process in processes:
            raise ValueError(f"{process} appears twice; name each endpoint once")
        processes.append(process)
    return tuple(processes)


def key_prefix(text: str) -> str:
    """A path in the store, without the last "/"."""
    if len(text) > PREFIX_LENGTH_MAX or not re.fullmatch(r"(/[^/\s\x00-\x1f]+)+/?", text):
        raise ValueError(f"{text!r}: a prefix looks like /elastic or /team/elastic")
    return text.rstrip("/")


def exit_codes(text: str) -> tuple[int, ...]:
    """Exit codes with commas between them; 0 is success and cannot be fatal."""
    return tuple(sorted({count(1, 255)(part.strip()) for part in text.split(",")}))


def path(kind: str) -> Callable[[str], str]:
    """A path; `kind` names what is expected there, for the message about a wrong one."""

    def read(text: str) -> str:
        if not text.strip() or "\0" in text:
            raise ValueError(f"{text!r} is not the name of {kind}")
        return text

    return read


def size(text: str) -> int:
    """An amount of memory in bytes: 8GB, 512MiB, 1.5g. KB, MB, GB, TB count by 1000, KiB and so on by 1024.

    A number needs a unit: 8 would be 8 bytes, which is never meant.
    """
    number = text.strip()
    if re.fullmatch(_NUMBER, number) and 0 < float(number) <= SIZE_MAX:
        fits = float(number) * 1024**3 <= SIZE_MAX
        hint = f"write {number}GB or {number}GiB" if fits else f"write {number}B if it counts bytes"
        raise ValueError(f"{text!r} has no unit; {hint}")
    return _bytes(text)


def _bytes(text: str) -> int:
    """Read an amount of memory as `size` does; a number without a unit counts bytes."""
    match = re.fullmatch(rf"({_NUMBER})\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is not an amount of memory; write 8GB or 512MiB")
    power = " kmgt".index(match[2] or " ")
    value = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if not 0 < value <= SIZE_MAX:
        raise ValueError(f"{text!r} is not between 1 byte and 1024 TiB")
    return value


def log_size(text: str) -> int | None:
    """Read the bound of a log in bytes: as in `size`, or a number of bytes without a unit; None for 0: no bound."""
    if re.fullmatch(r"0+\s*([kmgt]i?)?b?", text.strip().lower()):
        return None
    value = _bytes(text)
    if value < LOG_BYTES_LOWEST:
        raise ValueError(
            f"{text!r} is less than a log needs; use {LOG_BYTES_LOWEST >> 20}MiB or more, or 0 for no bound"
        )
    return value


def etcd_user(text: str) -> str:
    """Read the name of an etcd user, without a password."""
    if ":" in text:
        raise ValueError("leave out the password, which every list of processes would show; use --etcd-password-file")
    return text


def choice(*words: str) -> Callable[[str], str]:
    """Return a reader that accepts one of `words`."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"invalid value {text!r}: choose {', '.join(words[:-1])} or {words[-1]}")
        return text

    return read


def boolean(text: str) -> bool:
    """A switch from the environment."""
    value = _SWITCH_WORDS.get(text.lower())
    if value is None:
        raise ValueError(f"{text!r} is neither 1 nor 0")
    return value


def modules(text: str) -> tuple[str, ...]:
    """Names of modules, with commas between them."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError("no module is named; write --preload numpy,my.model")
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"{name!r} is not the name of a module; write it with dots and without .py")
    return names
