"""What people read of an error of etcd or grpc."""

from __future__ import annotations

import pytest

from elastic.store.etcd.errors import readable_part


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:2379: "
            "Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:2379: "
            "Handshake read failed (Socket closed)",
            "Handshake read failed (Socket closed)",
        ),
        (
            "errors resolving etcd.example:2379: [field:hostname lookup error:address lookup failed for "
            "etcd.example:2379: Domain name not found]",
            "Domain name not found",
        ),
        ("Deadline Exceeded", "Deadline Exceeded"),
    ],
)
def test_of_a_failed_connection_only_the_reason_is_told(text: str, words: str) -> None:
    assert readable_part(text) == words
