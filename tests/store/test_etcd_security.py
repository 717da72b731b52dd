"""etcd with users: who may, who may not, and tokens that end."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.errors import StoreDenied
from elastic.store.base import Put, Range
from elastic.store.certificates import Certificates
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdOptions, EtcdStore
from tests.store.mirrors import Watched
from tests.store.servers import Server, one_server
from tests.store.users import add_users


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the users root and job; job may do everything under /elastic/ and nothing else."""
    server = one_server(find_etcd(), tmp_path_factory.mktemp("auth")).start()

    asyncio.run(add_users(server.endpoint))
    yield server
    server.kill()


def test_a_user_with_rights_on_the_prefix_can_do_everything_there(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        async with Watched(store, "/elastic/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            lease = await store.grant(30)
            await store.txn((), [Put("/elastic/j/a", b"", lease.id)])
            await watched.until(lambda: set(watched.values) == {"/elastic/j/a"})
            assert await store.refresh(lease.id) == 30
            await store.revoke(lease.id)
            await watched.until(lambda: not watched.values)
            assert len(await store.statuses()) == 1
        await store.close()

    asyncio.run(run())


def test_a_key_outside_the_rights_is_denied_for_reads_writes_and_watches(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        with pytest.raises(StoreDenied, match="permission denied"):
            await store.list(Range.prefix("/other/"))
        with pytest.raises(StoreDenied, match="permission denied"):
            await store.txn((), [Put("/other/a", b"")])
        with pytest.raises(StoreDenied):
            async for _ in store.watch([Range.prefix("/other/")], 1):
                pass
        await store.close()

    asyncio.run(run())


def test_a_wrong_password_and_a_missing_user_are_denied(guarded_server: Server) -> None:
    async def run() -> None:
        for options in (EtcdOptions(user="job", password="wrong"), EtcdOptions()):
            store = EtcdStore([guarded_server.endpoint], options=options)
            with pytest.raises(StoreDenied, match=guarded_server.endpoint):
                await store.list(Range.prefix("/elastic/"))
            await store.close()

    asyncio.run(run())


def test_a_token_that_is_no_longer_good_is_replaced(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        for call in (store.list(Range.prefix("/elastic/")), store.txn((), [Put("/elastic/x", b"")]), store.grant(30)):
            store._servers.token = "spoiled"
            await call
            assert store._servers.token not in ("", "spoiled")
        lease = await store.grant(30)
        store._servers.token = "spoiled"
        assert await store.refresh(lease.id) == 30
        await store.close()

    asyncio.run(run())


def test_a_user_where_etcd_knows_no_users_is_no_obstacle(etcd_35: Server) -> None:
    async def run() -> None:
        store = EtcdStore([etcd_35.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        assert (await store.list(Range.prefix("/elastic/"))).revision >= 1
        assert (await store.grant(30)).ttl_s == 30
        await store.close()

    asyncio.run(run())


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and cert.pem with key.pem for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine")
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-subj")
    openssl(folder, *new, "/CN=our ca", "-x509", "-days", "2", "-keyout", "ca-key.pem", "-out", "ca.pem")
    openssl(folder, *new, "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "request.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    sign = ("x509", "-req", "-days", "2", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial")
    openssl(folder, *sign, "-in", "request.pem", "-extfile", "names", "-out", "cert.pem")
    return folder


def test_a_server_with_certificates_is_spoken_to_by_those_who_have_one(certificates: Path, tmp_path: Path) -> None:
    ca, cert, key = (str(certificates / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    flags = (f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={ca}", "--client-cert-auth")
    server = one_server(find_etcd(), tmp_path / "etcd", *flags).start(wait=False)

    async def run() -> None:
        options = EtcdOptions(certificates=Certificates(ca=ca, cert=cert, key=key), request_limit_s=20)
        store = EtcdStore([f"https://{server.endpoint}"], options=options)
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            await store.txn((), [Put("/j/a", b"")])
            await watched.until(lambda: set(watched.values) == {"/j/a"})
        await store.close()
        for options in (EtcdOptions(), EtcdOptions(certificates=Certificates(ca=ca))):
            store = EtcdStore([f"https://{server.endpoint}"], options=options)
            with pytest.raises(StoreDenied):
                await store.list(Range.prefix("/j/"))
            await store.close()

    try:
        asyncio.run(run())
    finally:
        server.kill()
