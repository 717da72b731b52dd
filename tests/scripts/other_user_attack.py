"""What another local user can do to a job: `python -m tests.scripts.other_user_attack`, started as root.

It becomes the user nobody, attacks what stands on stdin, and prints what it got: `etcd` has the ways in which a target
answered as an etcd does, `entered` the paths that it could connect to, list or read.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # The first connection imports it, and nobody may not read the files of root's Python.
import json
import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc  # type: ignore[import-untyped, unused-ignore]

from elastic.store.etcd.stubs import EtcdStub, rpc

NOBODY = 65534
PATIENCE_S = 10.0
"""For one answer. An open etcd gives it in milliseconds, on a busy machine in seconds."""
PAGES = ("/version", "/health", "/metrics", "/debug/vars", "/debug/pprof/", "/members", "/v2/keys/", "/")
GATEWAYS = ("/v3/kv/range", "/v3beta/kv/range")
EVERY_KEY = b"\0"


def become_nobody() -> None:
    """Give up every right, and with them the way back."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def calls(target: str) -> Iterator[str]:
    """The calls of etcd's API over gRPC that the target answers."""
    with grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = EtcdStub(channel)
        asked = {
            "Range": rpc.RangeRequest(key=EVERY_KEY, range_end=EVERY_KEY),
            "Put": rpc.PutRequest(key=b"/stranger", value=b"was here"),
        }
        for name, request in asked.items():
            with suppress(grpc.RpcError):
                getattr(stub, name)(request, timeout=PATIENCE_S)
                yield name


def pages(target: str) -> Iterator[str]:
    """The pages of etcd, and of its JSON gateway, that the target shows."""
    every_key = '{"key": "AA==", "range_end": "AA=="}'
    requests = {path: f"GET {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n" for path in PAGES}
    for path in GATEWAYS:
        head = f"POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {len(every_key)}\r\n\r\n"
        requests[path] = head + every_key
    for path, request in requests.items():
        with suppress(OSError), connected(target) as connection:
            connection.sendall(request.encode())
            said = b""
            while b"\n" not in said and (data := connection.recv(4096)):
                said += data
            if said.split(b" ")[1:2] == [b"200"]:
                yield path


def connected(target: str) -> socket.socket:
    """A connection to `host:port` or to `unix-abstract:name`."""
    kind, _, name = target.partition(":")
    if kind != "unix-abstract":
        host, _, port = target.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(f"\0{name}")
    return connection


def attack(target: str) -> list[str]:
    """Every way in which the target answers as etcd does."""
    return [*calls(target), *pages(target)]


def entered(path: str) -> bool:
    """Tell whether the socket takes a connection, the folder shows what is in it, or the file its content."""
    with suppress(OSError):
        if Path(path).is_socket() or path.endswith(":1"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
        elif Path(path).is_dir():
            os.listdir(path)
        else:
            Path(path).read_bytes()
        return True
    return False


def main() -> None:
    """Attack everything at once."""
    order: dict[str, list[str]] = json.load(sys.stdin)
    become_nobody()
    with ThreadPoolExecutor(max(1, len(order["targets"]))) as pool:
        ways = dict(zip(order["targets"], pool.map(attack, order["targets"]), strict=True))
    print(json.dumps({"etcd": ways, "entered": [path for path in order["paths"] if entered(path)]}))


if __name__ == "__main__":
    main()
