"""Command lines and environments: each is a configuration, or one line that says what is wrong, with exit code 2."""

from __future__ import annotations

import contextlib
import io

from elastic import environment
from elastic.errors import ConfigError, ElasticError
from launcher.config import durations, readers, store_access
from launcher.config.argv import named_values
from launcher.config.config import Config, worker_argv
from launcher.config.flags import FLAGS as ALL
from launcher.config.flags import JOB_FLAGS
from launcher.config.parse import parse
from launcher.config.store_access import read_credentials
from launcher.ctl import cli
from launcher.job import named_job
from launcher.local import commands
from tests.fuzz.target import Target, scratch

FOLDER = scratch("commands")
WORD_CHARACTERS = 4000


def fits(error: ElasticError) -> None:
    """The mistake is told in words that a terminal shows, and in not too many."""
    line = " ".join(str(error).split())
    assert error.exit_code == 2, (error.exit_code, line)
    assert line
    line.encode(errors="surrogateescape")


def split(data: bytes) -> tuple[list[str], dict[str, str]]:
    """A word on each line; lines that begin with "$" are NAME=value of the environment."""
    words: list[str] = []
    environ: dict[str, str] = {}
    for line in data.replace(b"\0", b"").split(b"\n"):
        text = line[:WORD_CHARACTERS].decode(errors="surrogateescape")  # As Python gives us what the system has.
        if text.startswith("$"):
            name, _, value = text[1:].partition("=")
            environ[name] = value
        elif text:
            words.append(text)
    return words, environ


def flags(data: bytes) -> None:
    """The command line of elastic-launch and its environment."""
    words, environ = split(data)
    try:
        config = parse(words, environ)
    except ConfigError as error:
        fits(error)
        return
    assert isinstance(config, Config)
    worker_argv(config)
    commands.node_argv(config, "127.0.0.1:2379")
    commands.joiner_line(config, "127.0.0.1:2379", environ, secret=True)
    commands.status_line(config, "127.0.0.1:2379", secret=True)


def operator(data: bytes) -> None:
    """The command line of elastic-ctl: nothing is asked of any server here."""
    words, environ = split(data)
    code: object = 0
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        try:
            asked = cli.parser().read(words)
            named_job.named_job(vars(asked), environ)
            store_access.read_access(named_values(vars(asked), environ, JOB_FLAGS), environ)
        except ConfigError as error:
            fits(error)
        except SystemExit as ended:
            code = ended.code
    assert code in (0, 2)


def place(data: bytes) -> None:
    """The environment of a process that asks who it is."""
    _, environ = split(data)
    try:
        environment.read(environ)
    except ConfigError as error:
        fits(error)


def lists(data: bytes) -> None:
    """Lists of hosts, servers, cards, modules and sizes: one reader after the other."""
    text = data.decode(errors="surrogateescape")
    for read in READERS:
        with contextlib.suppress(ValueError):
            read(text)


def password(data: bytes) -> None:
    """The file with the password of etcd: no message has any of it."""
    path = FOLDER / "password"
    path.write_bytes(data)
    try:
        found = read_credentials("me", str(path), {})
    except ConfigError as error:
        fits(error)
        told = str(error)
    else:
        assert found.password
        assert "\n" not in found.password
        told = repr(found)
    secret = data.decode(errors="replace").strip()
    assert len(secret) < 6 or secret not in told.replace("password", "")  # A secret may be a part of our own word.


READERS = (
    *(
        readers.np,
        readers.nproc,
        readers.servers,
        readers.job_id,
        readers.host,
        readers.hosts,
        readers.port_range,
        readers.nic,
    ),
    *(readers.gpus, readers.endpoint_list, readers.worker_list, readers.key_prefix, readers.exit_codes, readers.size),
    *(
        readers.modules,
        readers.log_size,
        durations.duration(0),
        durations.lease_ttl,
        durations.silence_timeout,
        readers.etcd_user,
        readers.boolean,
    ),
)
EXAMPLES = {
    "--elastic-server": b"10.0.0.5:2379,https://[fe80::1]:2379",
    "--ips": b"a,10.0.0.2,fe80::1",
    "--servers": b"a:6170,b:6170",
    "--workers": b"a,b,[::1]:70",
    "--gpus": b"0, 3,GPU-12ab",
    "--np": b"1:4",
    "--port-range": b"35000:35099",
    "--key-prefix": b"/team/elastic",
    "--preload": b"numpy,my.model",
    "--log-max-bytes": b"1GB",
    "--memory-limit": b"8GiB",
    "--fatal-exit-codes": b"3,4",
    "--host": b"[fe80::1%eth0]",
}


def every_flag() -> list[bytes]:
    """Each flag once, with a value of its kind, as a word and as a variable."""
    found = []
    for flag in ALL:
        value = EXAMPLES.get(f"--{flag.name}", b"2" if flag.read is not None else b"")
        word = f"--{flag.name}".encode()
        found.append(b"%s%s\ntrain.py" % (word, b"\n" + value if flag.read is not None else b""))
        found.append(b"$%s=%s\ntrain.py\n--lr=1" % (flag.variables[0].encode(), value or b"1"))
    return found


COMMAND = (
    b"--elastic-server\n10.0.0.5:2379\n--job_id\nj1\n--np=2:4\n--ips=a,b,c,d\n--nproc-per-node\nauto\n--log_dir\nlog\n-m\n"
    b"train.main\n--lr\n0.1"
)
PADDLE = (
    b"$PADDLE_TRAINERS=10.0.0.1,10.0.0.2\n$POD_IP=10.0.0.1\n$PADDLE_TRAINER_ID=0\n$PADDLE_PORT=6170\n$TRAINER_PORTS_NUM=2\n"
    b"$PADDLE_ELASTIC_ETCD_SERVICE_HOST=h\n$PADDLE_ELASTIC_ETCD_SERVICE_PORT=2379\n--job_id\nj1\ntrain.py"
)
PLACES = (
    b"$RANK=1\n$LOCAL_RANK=1\n$WORLD_SIZE=2\n$LOCAL_WORLD_SIZE=2\n$MASTER_ADDR=::1\n$MASTER_PORT=29500",
    b"$PADDLE_TRAINING_ROLE=PSERVER\n$PADDLE_PSERVERS_IP_PORT_LIST=a:1,[::1]:2\n$PADDLE_TRAINERS=2\n$PADDLE_PORT=1\n"
    b"$POD_IP=a",
    b"$TRAINING_ROLE=TRAINER\n$PADDLE_PSERVER_IPS=a,b\n$PADDLE_PSERVER_PORT=6174\n$PADDLE_TRAINER_ID=1\n$PADDLE_TRAINERS_NUM=2",
    b"$ELASTIC_ROLE=server\n$ELASTIC_INDEX=0\n$PADDLE_TRAINERS=1\n$ELASTIC_GENERATION=3\n$ELASTIC_ROSTER_FILE=/r.json",
)
CTL = (
    b"status\n--elastic_server\nh:2379\n--job_id\nj1\n--json",
    b"events\n--elastic-server=h:1\n--job_id=j1",
    b"doctor\n$ELASTIC_ETCD=h:2379\n$ELASTIC_JOB_ID=j1",
)
TARGETS = (
    Target("flags", flags, (COMMAND, PADDLE, *every_flag())),
    Target("elastic-ctl", operator, CTL),
    Target("environment", place, PLACES),
    Target("lists", lists, tuple(EXAMPLES.values())),
    Target("password file", password, (b"secret\n", b"pass word with spaces\r\n")),
)
