"""TLS between etcd and a client that does not fit: one clear line, at once."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic.core.kv import KeyRange, Put
from elastic.errors import ConfigError, StoreDenied, StoreUnavailable
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.tls import NONE, Certificates
from tests.support.etcd_servers import Server, binary_of, one_server
from tests.support.mirror_harness import Watched
from tests.support.tls_authority import Authority, authority

PATIENCE_S = 20.0
"""A server that starts is waited for."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=["3.4", "3.5"])
def guarded(request: pytest.FixtureRequest, ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that shows a certificate and wants one. Version 3.4 says so in the handshake, and 3.5 after it."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip(f"there is no etcd {request.param} on this machine")
    folder = tmp_path_factory.mktemp("guarded")
    yield from _served(one_server(binary, folder, *ours.server(), *ours.wants_clients))


def _served(server: Server) -> Iterator[str]:
    server.start(wait=False)
    try:
        asyncio.run(_there(server.endpoint))
        yield server.endpoint
    finally:
        server.kill()


async def _there(endpoint: str) -> None:
    host, port = endpoint.split(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


def asked(server: str, certificates: Certificates = NONE) -> str:
    """What comes of a request: "" if it is answered, else the error, which must be the last word."""

    async def run() -> str:
        store = EtcdStore([server], options=EtcdOptions(certificates=certificates, request_limit_s=PATIENCE_S))
        try:
            async with asyncio.timeout(PATIENCE_S / 2):  # It does not use up its limit.
                await store.list(KeyRange.prefix("/j/"))
        except StoreDenied as error:
            return str(error)
        finally:
            await store.close()
        return ""

    return asyncio.run(run())


def test_who_has_a_certificate_can_do_everything(guarded: str, ours: Authority) -> None:
    async def run() -> None:
        store = EtcdStore([guarded], options=EtcdOptions(certificates=ours.client, request_limit_s=PATIENCE_S))
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            await store.txn((), [Put("/j/a", b"")])
            await watched.until(lambda: set(watched.values) == {"/j/a"})
        await store.close()

    asyncio.run(run())


def test_an_authority_that_is_not_known_is_named(guarded: str, ours: Authority) -> None:
    other = ours.path("other.pem")
    assert asked(guarded, replace(ours.client, ca=other)) == (
        f'etcd at {guarded}: its certificate is signed by "our authority", which is not in --etcd-ca {other}; '
        "name that authority's file"
    )
    # Without a certificate of ours some servers end the handshake before theirs can be looked at.
    assert re.fullmatch(
        rf"etcd at {guarded}: its certificate is signed by (an authority that|\"our authority\", which) is not in this "
        "system's list; add --etcd-ca FILE with that authority",
        asked(f"https://{guarded}"),
    )


def test_a_server_that_wants_a_certificate_of_its_clients_says_so(guarded: str, ours: Authority) -> None:
    assert asked(guarded, Certificates(ca=ours.path("ca.pem"))) == (
        f"etcd at {guarded}: it requires a client certificate; add --etcd-cert FILE and --etcd-key FILE"
    )


def test_a_certificate_of_ours_that_the_server_does_not_take_is_named(guarded: str, ours: Authority) -> None:
    other = Certificates(ca=ours.path("ca.pem"), cert=ours.path("other.pem"), key=ours.path("other-key.pem"))
    assert re.search(rf"it rejects the certificate of --etcd-cert {other.cert} \(.*\);", asked(guarded, other))


def test_tls_that_was_left_out_and_tls_that_is_not_there_are_told(
    guarded: str, ours: Authority, etcd_35: Server
) -> None:
    assert "it requires TLS; write https:// before the server" in asked(guarded)
    assert "it does not use TLS; write http:// before the server" in asked(f"https://{etcd_35.endpoint}", ours.client)


@pytest.mark.parametrize(
    ("names", "days", "said"),
    [
        (
            "DNS:etcd.example,IP:10.0.0.5",
            2,
            "its certificate is not for 127.0.0.1, but for etcd.example, 10.0.0.5; name the server as the certificate "
            "does, or make one with 127.0.0.1 in its subjectAltName",
        ),
        ("IP:127.0.0.1", -1, "its certificate, or that of its authority, has expired (its own ends on "),
    ],
    ids=["another name", "expired"],
)
def test_a_certificate_that_does_not_do_is_told_with_what_stands_in_it(
    ours: Authority, tmp_path: Path, names: str, days: int, said: str
) -> None:
    ours.sign("unfit", names, days)
    for endpoint in _served(one_server(find_etcd(), tmp_path, *ours.server("unfit"))):
        assert said in asked(endpoint, Certificates(ca=ours.path("ca.pem")))


def test_of_several_servers_one_that_fits_is_enough(guarded: str, ours: Authority, etcd_35: Server) -> None:
    async def run() -> None:
        servers = [f"https://{guarded}", f"https://{etcd_35.endpoint}"]
        for _ in range(4):  # It begins at any of them.
            store = EtcdStore(servers, options=EtcdOptions(certificates=ours.client, request_limit_s=PATIENCE_S))
            await store.list(KeyRange.prefix("/j/"))
            await store.close()

    asyncio.run(run())


def _play(server: Server, story: Coroutine[None, None, None]) -> None:
    """Run a story while there is a server, which the story may kill and start again."""
    server.start(wait=False)
    try:
        asyncio.run(story)
    finally:
        server.kill()


def test_a_server_that_was_met_and_now_shows_another_certificate_is_an_outage(ours: Authority, tmp_path: Path) -> None:
    server = one_server(find_etcd(), tmp_path, *ours.server())

    async def run() -> None:
        files = Certificates(ca=ours.path("ca.pem"))
        store = EtcdStore([server.endpoint], options=EtcdOptions(certificates=files, request_limit_s=2.0))
        await _there(server.endpoint)
        await store.list(KeyRange.prefix("/j/"))
        server.kill()
        ours.sign("here", "DNS:elsewhere")
        server.start(wait=False)
        await _there(server.endpoint)
        with pytest.raises(StoreUnavailable, match=r"its certificate is not for 127.0.0.1, but for elsewhere"):
            await store.list(KeyRange.prefix("/j/"))
        await store.close()

    try:
        _play(server, run())
    finally:
        ours.sign("here", "IP:127.0.0.1")


def test_files_that_are_renewed_count_without_a_new_client(tmp_path: Path) -> None:
    for name in ("old", "new", "etcd"):
        (tmp_path / name).mkdir()
    old, new = authority(tmp_path / "old"), authority(tmp_path / "new")
    server = one_server(find_etcd(), tmp_path / "etcd", *old.server(), *old.wants_clients)

    async def run() -> None:
        store = EtcdStore([server.endpoint], options=EtcdOptions(certificates=old.client, request_limit_s=PATIENCE_S))
        await _there(server.endpoint)
        await store.list(KeyRange.prefix("/j/"))
        server.kill()
        for file in ("here.pem", "here-key.pem", "ca.pem"):
            shutil.copy(new.folder / file, old.folder / file)
        server.start(wait=False)
        await _there(server.endpoint)
        await store.list(KeyRange.prefix("/j/"))
        await store.close()

    _play(server, run())


def test_certificates_and_a_server_without_tls_contradict_each_other(ours: Authority) -> None:
    with pytest.raises(ConfigError, match=r"http://127.0.0.1:1 is without TLS, which certificates are for"):
        EtcdStore(["http://127.0.0.1:1"], options=EtcdOptions(certificates=ours.client))
