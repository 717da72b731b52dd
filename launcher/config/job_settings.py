"""The settings of a job: its store, its name, how many nodes it has and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.core.model import SETTLE_MAX_S, Np
from launcher.config import readers
from launcher.config.durations import METAVAR, duration, lease_ttl, silence_timeout
from launcher.config.setting import ELASTIC, Scope, Settings, setting


@dataclass(frozen=True, kw_only=True)
class StoreSettings(Settings, group=ELASTIC):
    """The job's store: etcd's endpoints and the way into it, or the etcd that is started."""

    servers: tuple[str, ...] = setting(
        (),
        "etcd's endpoints: host:port, more of them with commas",
        readers.servers,
        "HOST:PORT,...",
        shown="an etcd of its own, on this machine",
        name="elastic_server",
        environs=("PADDLE_ELASTIC_SERVER",),
        scope=Scope.STORE,
    )
    etcd_ca: str = setting(
        "",
        "the authority that signed etcd's certificate, a file in PEM; with this and the two below TLS is spoken, "
        "as with https:// in --elastic_server",
        readers.path("a file"),
        "FILE",
        shown="the authorities that this system trusts",
        scope=Scope.STORE,
    )
    etcd_cert: str = setting(
        "",
        "our own certificate, a file in PEM, where etcd wants one of its clients",
        readers.path("a file"),
        "FILE",
        shown="none",
        scope=Scope.STORE,
    )
    etcd_key: str = setting(
        "",
        "the key of --etcd_cert, a file in PEM without a passphrase; workers do not get it",
        readers.path("a file"),
        "FILE",
        shown="none",
        scope=Scope.STORE,
    )
    etcd_user: str = setting(
        "",
        "the user of etcd; the password comes from --etcd_password_file or ELASTIC_ETCD_PASSWORD",
        readers.etcd_user,
        "NAME",
        shown="none",
        scope=Scope.STORE,
    )
    etcd_password_file: str = setting(
        "",
        "a file with the password of --etcd_user, one line; workers do not get it",
        readers.path("a file"),
        "FILE",
        shown="none",
        scope=Scope.STORE,
    )
    allow_plaintext_password: bool = setting(
        False,
        "send the password of --etcd_user to an etcd without TLS on another machine, where everybody on the "
        "network path can read it; without this flag that is refused",
        scope=Scope.STORE,
    )
    serve: str = setting(
        "",
        "serve this job's etcd at this address of this machine, for nodes of other machines; they need the secret "
        "of the job, and the command for them is printed; 0.0.0.0 or :: with --host: at all addresses of this machine",
        readers.serve,
        "ADDRESS[:PORT]",
        shown="an etcd of its own is for this machine alone",
        scope=Scope.PARENT,
    )
    job_secret_file: str = setting(
        "",
        "a file with one line, the same on every node: whoever has it gets into the etcd that --ips, --servers or "
        "--serve serves, and nobody else; ELASTIC_JOB_SECRET has the secret itself; workers do not get it",
        readers.path("a file"),
        "FILE",
        shown="none: with --serve a random one, with --ips and --servers no secret",
        scope=Scope.STORE,
    )
    print_secret: bool = setting(
        False,
        "with --serve: print the random secret in the command for other nodes also where stderr is no terminal: a "
        "file, a pipe, a journal",
        scope=Scope.PARENT,
    )


@dataclass(frozen=True, kw_only=True)
class JobSettings(Settings, group=ELASTIC):
    """The job, and how this node takes part in it."""

    job_id: str = setting(
        "",
        "the name of the job, the same on every node; up to 128 letters, digits, '.', '_' and '-'",
        readers.job_id,
        "NAME",
        shown="with a server none, with a list of hosts the script and their names, else a random one",
        environs=("PADDLE_ELASTIC_JOB_ID",),
        scope=Scope.STORE | Scope.WORKER,
    )
    np: Np = setting(
        Np(low=1, high=1, first=1),
        "nodes: N starts with N and goes on with what remains; N+ also takes in every node that joins; MIN:MAX "
        "runs any number between; N:N needs all; with parameter servers the nodes of workers alone, and then servers "
        "have nodes of their own",
        readers.np,
        "N|N+|MIN:MAX",
        shown="the number of --ips; with an etcd of its own 1+, or N+ with --local_nodes N; else --local_nodes or 1",
        environs=("PADDLE_ELASTIC_NP",),
        scope=Scope.JOB,
    )
    settle_s: float = setting(
        3.0,
        "a start with MIN:MAX, or a growth, waits this long after the last arrival, 15s at most in all",
        duration(0, SETTLE_MAX_S),
        METAVAR,
        scope=Scope.JOB,
    )
    grow_every_s: float | None = setting(
        None,
        "newcomers are taken into a running job at most once in this time",
        duration(0),
        METAVAR,
        shown="1m; without a limit for a script that saves before it leaves, with our library",
        scope=Scope.JOB,
    )
    lease_ttl_s: float = setting(
        5.0,
        "a node that does not refresh its lease in etcd for this long is lost; whole seconds; less is faster and less "
        "forgiving",
        lease_ttl,
        METAVAR,
        scope=Scope.JOB,
    )
    silence_timeout_s: float = setting(
        1.0,
        "evict a node that has sent no heartbeat for this long, as soon as other nodes confirm that they cannot reach "
        "it; 0.1s or more and less than --lease_ttl; a lower value reacts faster and tolerates only shorter pauses; 0 "
        "turns heartbeats off, so that only --lease_ttl counts",
        silence_timeout,
        METAVAR,
        scope=Scope.JOB,
    )
    store_outage_limit_s: float = setting(
        120.0,
        "the longest that nodes which hear each other train on while etcd cannot be reached; a new world waits "
        "for it if the nodes of the old one disappeared without leaving the job",
        duration(0),
        METAVAR,
        scope=Scope.JOB,
    )
    connect_timeout_s: float = setting(
        60.0,
        "how long to try to reach etcd at the start, before exit 4",
        duration(0),
        METAVAR,
        shown="1m; 10m where a host of a list serves etcd",
    )
    elastic_timeout_s: float | None = setting(
        None,
        "leave with exit 4 after waiting this long for enough nodes; the job stays open",
        duration(1),
        METAVAR,
        shown="none: wait",
    )
    spot: str = setting(
        "auto",
        "whose notice that this machine is taken back is watched for, to drain in time: aws, gcp, azure, none, or "
        "auto: what the firmware says of this machine",
        readers.choice("auto", "aws", "gcp", "azure", "none"),
        "CLOUD",
    )
    key_prefix: str = setting(
        "/elastic", "every key of ours in etcd is below this", readers.key_prefix, "/PREFIX", scope=Scope.STORE
    )
    rerun: bool = setting(False, "run a job again that has ended; no effect while one of its nodes lives", once=True)
    force: bool = setting(False, "this node's --np replaces the one of the running job when it joins", once=True)
    allow_mismatch: bool = setting(
        False, "join although this node's versions differ from those of the job; says so in one line"
    )
