"""Three etcd members, each on a machine of its own, and what people and accidents do to them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from typing import Any

from docker.models.containers import Container  # type: ignore[import-untyped, unused-ignore]
from testcontainers.core.network import Network

from tests.cluster import engine
from tests.cluster.box import Box
from tests.support.etcd_servers import ETCD_34

ANSWER_S = 2.0
START_S = 60.0
POLL_S = 0.1
"""etcd tells nobody that it has a leader."""
NUMBERS = (2, 3, 4)
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Proxies do not know these addresses."""


class Member(Box):
    """One of them: a container with its data inside, so that a start after a kill has it again."""

    def __init__(self, number: int, prefix: str, on: Network, version: str) -> None:
        self.name = f"etcd{number}"
        self.address = f"{prefix}.{NUMBERS[number - 1]}"
        self._prefix, self._on, self._version = prefix, on, version
        self.container = self._made()

    def _made(self) -> Container:
        cluster = ",".join(f"etcd{place + 1}=http://{self._prefix}.{at}:2380" for place, at in enumerate(NUMBERS))
        client, peer = f"http://{self.address}:2379", f"http://{self.address}:2380"
        words = [
            f"--name={self.name}", "--data-dir=/data", "--listen-client-urls=http://0.0.0.0:2379",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={cluster}", "--logger=zap", "--log-level=warn",
        ]  # fmt: skip
        of_host = dict.fromkeys(engine.SYSTEM, "ro")
        image, binary, mounted = {
            "3.4": (engine.NODE_IMAGE, ETCD_34, of_host),
            "3.5": (engine.ETCD_IMAGE, "/etcd", {}),
        }[self._version]
        return engine.container(image, self.name, self.address, self._on, [binary, *words], mounted)

    def renew(self) -> None:
        """Again, without its data."""
        self.container.remove(force=True)
        self.container = self._made()

    def status(self) -> dict[str, Any] | None:
        """What it says of itself and of its leader; None if it says nothing."""
        try:
            return self.ask("/v3/maintenance/status", {})
        except (OSError, urllib.error.URLError):
            return None

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call it by its JSON gateway. Raises OSError."""
        url = f"http://{self.address}:2379{path}"
        with DIRECT.open(urllib.request.Request(url, json.dumps(body).encode()), timeout=ANSWER_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


class Members:
    """All three."""

    def __init__(self, prefix: str, on: Network, version: str) -> None:
        self.all = [Member(number, prefix, on, version) for number in (1, 2, 3)]

    @property
    def servers(self) -> str:
        """What `--elastic-server` is given: names, not addresses."""
        return ",".join(f"{member.name}:2379" for member in self.all)

    def leader(self) -> Member:
        """The one that leads."""
        for member in self.all:
            said = member.status()
            if said is not None and said.get("leader") == said["header"]["member_id"]:
                return member
        raise RuntimeError("no member of etcd leads")

    def followers(self) -> list[Member]:
        """The others."""
        leader = self.leader()
        return [member for member in self.all if member is not leader]

    def until_led(self) -> None:
        """Wait until all of them follow one leader."""
        limit = time.monotonic() + START_S
        while not self._led():
            if time.monotonic() > limit:
                raise TimeoutError(f"etcd has no leader after {START_S:g} s: {[one.status() for one in self.all]}")
            time.sleep(POLL_S)

    def _led(self) -> bool:
        said = [member.status() for member in self.all]
        return len({one.get("leader") if one else None for one in said}) == 1 and bool(
            said[0] and said[0].get("leader")
        )

    def keys(self, prefix: str) -> dict[str, int]:
        """Keys below a prefix, and the lease of each (0: none)."""
        first = prefix.encode()
        last = first[:-1] + bytes([first[-1] + 1])
        body = {"key": b64encode(first).decode(), "range_end": b64encode(last).decode(), "keys_only": True}
        found = self._one().ask("/v3/kv/range", body).get("kvs", [])
        return {b64decode(entry["key"]).decode(): int(entry.get("lease", 0)) for entry in found}

    def revoke(self, lease: int) -> None:
        """End a lease."""
        self._one().ask("/v3/lease/revoke", {"ID": str(lease)})

    def write(self, key: str) -> None:
        """Put something there, so that there is another revision."""
        self._one().ask("/v3/kv/put", {"key": b64encode(key.encode()).decode(), "value": ""})

    def compact(self) -> None:
        """Forget everything that is not the present."""
        one = self._one()
        said = one.status()
        assert said is not None
        one.ask("/v3/kv/compaction", {"revision": said["header"]["revision"], "physical": True})

    def _one(self) -> Member:
        return next(member for member in self.all if member.status() is not None)
