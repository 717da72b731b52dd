"""The way into etcd as the command line names it: TLS, certificates, and an etcd that is served to others."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from elastic.store.tls import Certificates
from launcher.config import readers, store_access
from launcher.config.config import Config
from launcher.config.machine_checks import check
from launcher.config.parse import parse
from launcher.config.readers import StoreEndpoints
from launcher.config.store_access import PASSWORD, SECRET
from launcher.local.commands import joiner_line, node_argv, node_environments, status_line
from launcher.local.etcd_addresses import served_endpoint
from tests.support.tls_authority import Authority, authority

SECRET_TEXT = "a secret of many characters"


def named(*flags: str, server: str = "etcd:2379", **environ: str) -> Config:
    return parse(("--elastic-server", server, "--job-id", "j", *flags, "t.py"), environ)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    ("server", "flags", "endpoint"),
    [
        ("etcd:2379", (), "etcd:2379"),
        ("http://etcd:2379", (), "etcd:2379"),
        ("https://etcd:2379", (), "https://etcd:2379"),
        ("etcd:2379", ("--etcd-ca", "ca.pem"), "https://etcd:2379"),
        ("etcd:2379", ("--etcd-cert=c.pem", "--etcd-key=k.pem"), "https://etcd:2379"),
        ("https://etcd:2379", ("--etcd-ca", "ca.pem"), "https://etcd:2379"),
    ],
)
def test_tls_is_spoken_where_https_or_a_certificate_is_named(
    server: str, flags: tuple[str, ...], endpoint: str
) -> None:
    assert named(*flags, server=server).store_access.endpoints == (endpoint,)


def test_the_variables_stand_for_the_flags() -> None:
    found = named(ELASTIC_ETCD_CA="ca.pem", ELASTIC_ETCD_CERT="c.pem", ELASTIC_ETCD_KEY="k.pem")
    assert found.store_access.certificates == Certificates(ca="ca.pem", cert="c.pem", key="k.pem")
    assert found.store_access.endpoints == ("https://etcd:2379",)


def test_a_server_without_tls_beside_certificates_is_told_with_the_mend() -> None:
    said = (
        r"http:// in --elastic-server means no TLS, and --etcd-ca is for TLS; write https://, or leave one of the two"
    )
    with pytest.raises(ConfigError, match=said):
        named("--etcd-ca", "ca.pem", server="http://etcd:2379")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--etcd-cert", "c.pem"), "--etcd-cert c.pem has no key: add --etcd-key FILE"),
        (("--etcd-key", "k.pem"), "--etcd-key k.pem has no certificate: add --etcd-cert FILE"),
        (("--etcd-ca", "none.pem"), "--etcd-ca none.pem cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_missing_are_told_with_the_mend(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    (tmp_path / "t.py").write_text("")
    config = parse(("--elastic-server", "127.0.0.1:1", "--job-id", "j", *flags, str(tmp_path / "t.py")), {})
    with pytest.raises(ConfigError, match=said):
        check(config, {})


def test_files_that_are_not_what_they_should_be_are_told_with_the_mend(ours: Authority, tmp_path: Path) -> None:
    text, binary = tmp_path / "text", tmp_path / "binary"
    text.write_text("no certificate\n")
    binary.write_bytes(bytes(range(256)))
    cert, key, ca = ours.client.cert, ours.client.key, ours.client.ca
    for file in (text, binary):
        name = str(file)
        for files, said in (
            (Certificates(ca=name), f"--etcd-ca {name} holds no certificate in PEM"),
            (Certificates(cert=name, key=key), f"--etcd-cert {name} holds no certificate in PEM"),
            (Certificates(cert=cert, key=name), f"--etcd-key {name} holds no key in PEM"),
        ):
            with pytest.raises(ConfigError, match=said):
                files.check()
    with pytest.raises(ConfigError, match=r"--etcd-key .* is not the key of --etcd-cert .*; name two that fit"):
        Certificates(ca=ca, cert=cert, key=ours.path("other-key.pem")).check()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Certificates(ca=str(tmp_path)).check()


def test_a_certificate_that_is_damaged_or_too_weak_is_not_put_down_to_its_key(ours: Authority, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text(Path(ours.client.cert).read_text().replace("M", "N", 20))
    with pytest.raises(ConfigError, match=f"the certificate in --etcd-cert {damaged} is damaged"):
        Certificates(cert=str(damaged), key=ours.client.key).check()
    short = ("req", "-x509", "-newkey", "rsa:512", "-nodes", "-subj", "/CN=short", "-sha256")
    ours.run(*short, "-keyout", "short-key.pem", "-out", "short.pem")
    with pytest.raises(
        ConfigError, match=r"--etcd-cert .*short.pem is too weak for the OpenSSL of this machine \(ee key"
    ):
        Certificates(cert=ours.path("short.pem"), key=ours.path("short-key.pem")).check()


def test_a_certificate_in_a_pipe_is_told_at_once_because_it_is_read_again(ours: Authority, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for files in (Certificates(ca=str(pipe)), Certificates(cert=ours.client.cert, key=str(pipe))):
        with pytest.raises(ConfigError, match=r"--etcd-(ca|key) .* is a pipe or a device, and is read again at each"):
            files.check()


def test_a_key_with_a_passphrase_is_told_and_nobody_is_asked_for_it(ours: Authority) -> None:
    locked = ours.path("locked.pem")
    ours.run("pkey", "-in", ours.client.key, "-aes128", "-passout", "pass:x", "-out", locked)
    with pytest.raises(ConfigError, match=r"--etcd-key .* has a passphrase, which cannot be entered here"):
        Certificates(cert=ours.client.cert, key=locked).check()


def test_a_key_that_others_can_read_is_a_warning(ours: Authority) -> None:
    key = Path(ours.client.key)
    key.chmod(0o644)
    assert ours.client.check() == (f"--etcd-key {key} can be read by every user of this machine; chmod 600 {key}",)
    key.chmod(0o600)
    assert ours.client.check() == ()


# --- a password without TLS -----------------------------------------------------------------------------------------

USER = ("--etcd-user", "u")
REFUSED = "the password of --etcd-user u would cross the network in the clear to {}; use TLS"


def with_password(tmp_path: Path, server: str, *flags: str, **environ: str) -> Config:
    known = {PASSWORD: "pw", **environ}
    (tmp_path / "t.py").write_text("")
    line = ("--elastic-server", server, "--job-id", "j", *USER, *flags, str(tmp_path / "t.py"))
    return check(parse(line, known), known)


@pytest.mark.parametrize(
    ("server", "named"),
    [
        ("192.0.2.7:2379", "192.0.2.7:2379"),
        ("http://192.0.2.7:2379", "192.0.2.7:2379"),
        ("127.0.0.1:1,192.0.2.7:2379,[2001:db8::7]:1", "192.0.2.7:2379, [2001:db8::7]:1"),
        ("[::ffff:192.0.2.7]:2379", "[::ffff:192.0.2.7]:2379"),
        ("localhost.example:1", "localhost.example:1"),
        ("0.0.0.0:1", "0.0.0.0:1"),
        (f"{socket.gethostname()}:1", f"{socket.gethostname()}:1"),
    ],
)
def test_a_password_is_refused_where_one_server_is_neither_tls_nor_loopback(
    tmp_path: Path, server: str, named: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(REFUSED.format(named))):
        with_password(tmp_path, server)
    with pytest.raises(ConfigError, match=re.escape(REFUSED.format(named))):
        store_access.read_access({"servers": readers.servers(server), "etcd_user": "u"}, {PASSWORD: "pw"})


@pytest.mark.parametrize(
    "server", ["127.0.0.1:1", "127.9.9.9:1,[::1]:1", "localhost:1", "LocalHost:1", "https://127.0.0.1:1"]
)
def test_a_password_is_taken_where_it_stays_on_this_machine_or_goes_over_tls(tmp_path: Path, server: str) -> None:
    assert with_password(tmp_path, server).login.password == "pw"


def test_a_certificate_authority_speaks_tls_so_that_the_password_is_taken(tmp_path: Path, ours: Authority) -> None:
    assert with_password(tmp_path, "192.0.2.7:1", "--etcd-ca", ours.client.ca).endpoints == ("https://192.0.2.7:1",)


def test_who_allows_it_sends_the_password_and_so_do_the_nodes_that_this_command_starts(tmp_path: Path) -> None:
    config = with_password(tmp_path, "192.0.2.7:1", "--allow-plaintext-password", "--local-nodes", "2")
    assert config.login.password == "pw"
    assert "--allow-plaintext-password" in node_argv(config, "192.0.2.7:1")
    variable = {"ELASTIC_ALLOW_PLAINTEXT_PASSWORD": "1"}
    assert with_password(tmp_path, "192.0.2.7:1", **variable).login.password == "pw"
    config = with_password(tmp_path, "192.0.2.7:1", "--local-nodes", "2", **variable)
    assert all(node.items() >= variable.items() for node in node_environments(config, variable))


# --- an etcd of ours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--etcd-ca", "ca.pem"),
            "--etcd-ca needs --elastic-server HOST:PORT: add it, or leave out --etcd-ca",
        ),
        (("--serve", "10.0.0.5", "--ips", "a,b"), "--serve and --ips contradict each other"),
        (("--ips", "a,b", "--etcd-user", "u"), "give every node the same --job-secret-file FILE or ELASTIC_JOB_SECRET"),
        (("--serve", "10.0.0.5", "--etcd-user", "u"), "to protect the etcd that --serve starts"),
        (
            ("--serve", "0.0.0.0"),
            "--serve 0.0.0.0 stands for every address .* add --host ADDRESS, at which they reach this machine",
        ),
        (("--serve", "[::]:9"), "--serve :: stands for every address of this machine"),
        (("--serve", "0.0.0.0", "--host", "0.0.0.0"), "--host 0.0.0.0 is not an address that other machines can reach"),
        (("--serve", "10.0.0.5:x"), "is not host:port"),
        (
            ("--serve", "10.0.0.5", "--elastic-server", "a:1", "--job-id", "j"),
            "--serve starts an etcd here, and --elastic-server names another",
        ),
    ],
)
def test_what_is_for_another_etcd_is_told_with_the_mend(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse((*flags, "t.py"), {})


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("10.0.0.5", "10.0.0.5:2379"),
        ("here:9", "here:9"),
        ("fd00::5", "[fd00::5]:2379"),
        ("[fd00::5]:9", "[fd00::5]:9"),
    ],
)
def test_the_served_address_has_a_port_or_gets_etcds(text: str, served: str) -> None:
    assert parse(("--serve", text, "t.py"), {}).serve == served


@pytest.mark.parametrize(
    ("address", "host", "reached"),
    [("0.0.0.0", "10.0.0.5", "10.0.0.5:2379"), ("0.0.0.0:9", "gate", "gate:9"), ("[::]:9", "fd00::5", "[fd00::5]:9")],
)
def test_where_all_addresses_are_served_others_are_sent_to_that_of_host(
    tmp_path: Path, address: str, host: str, reached: str
) -> None:
    config = checked(tmp_path, "--serve", address, "--host", host)
    assert served_endpoint(config) == reached
    child = parse(node_argv(config, "127.0.0.1:9"), {})
    assert (child.host, child.serve) == (host, "")
    named = {"ELASTIC_HOST": host}
    config = checked(tmp_path, "--serve", address, **named)
    assert parse(node_argv(config, "127.0.0.1:9"), named).host == host


def checked(tmp_path: Path, *flags: str, **environ: str) -> Config:
    (tmp_path / "t.py").write_text("")
    return check(parse((*flags, str(tmp_path / "t.py")), environ), environ)


def test_a_served_job_has_a_random_secret_that_stands_before_the_command_and_not_in_it(tmp_path: Path) -> None:
    config = checked(tmp_path, "--serve", "127.0.0.1:9", "--np", "2")
    secret = config.login.secret
    assert (len(secret), config.login.made) == (32, True)
    line = joiner_line(config, config.serve, {}, secret=True)
    assert line.startswith(f"{SECRET}={secret} elastic-launch --elastic-server 127.0.0.1:9 --job-id {config.job_id} ")
    asked = status_line(config, config.serve, secret=True)
    assert asked == f"{SECRET}={secret} elastic-ctl status --elastic-server 127.0.0.1:9 --job-id {config.job_id}"
    for hidden in (joiner_line(config, config.serve, {}, secret=False), status_line(config, "h:9", secret=False)):
        assert hidden.startswith(f"{SECRET}=${{{SECRET}:?}} elastic-")
        assert secret not in hidden
    assert secret not in " ".join(node_argv(config, "127.0.0.1:9"))
    assert [one[SECRET] for one in node_environments(config, {})] == [secret]
    assert checked(tmp_path, "--serve", "127.0.0.1:9").login.secret != secret


def test_a_secret_of_the_users_own_is_not_printed(tmp_path: Path) -> None:
    config = checked(tmp_path, "--serve", "127.0.0.1:9", "--quiet", **{SECRET: SECRET_TEXT})
    assert SECRET not in joiner_line(config, config.serve, {}, secret=True)
    assert SECRET_TEXT not in joiner_line(config, config.serve, {}, secret=True)
    assert SECRET_TEXT not in repr(config)


def test_a_secret_and_tls_are_for_two_kinds_of_etcd(tmp_path: Path) -> None:
    flags = ("--elastic-server", "https://127.0.0.1:1", "--job-id", "j")
    with pytest.raises(
        ConfigError, match=r"an etcd that elastic-launch starts, which does not use TLS; leave out https://"
    ):
        checked(tmp_path, *flags, **{SECRET: SECRET_TEXT})
    with pytest.raises(ConfigError, match="which does not use TLS"):
        store_access.read_access({"servers": StoreEndpoints(("127.0.0.1:1",), tls=True)}, {SECRET: SECRET_TEXT})


def test_a_random_secret_that_nobody_would_see_is_told_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--quiet prints nothing; leave out --quiet, or give the secret"):
        checked(tmp_path, "--serve", "127.0.0.1:9", "--quiet")
