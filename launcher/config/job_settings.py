"""The settings of a job: etcd, its name, its number of nodes, and how long they wait for each other."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.core.model import JOIN_WINDOW_MAX_S, Np
from launcher.config import readers
from launcher.config.durations import METAVAR, duration, lease_ttl, silence_timeout
from launcher.config.setting import ELASTIC, Scope, Settings, setting


@dataclass(frozen=True, kw_only=True)
class StoreSettings(Settings, group=ELASTIC):
    """etcd: its endpoints and the credentials for it, or the one that elastic-launch starts."""

    servers: tuple[str, ...] = setting(
        (),
        "the address of etcd: host:port; separate several endpoints with commas",
        readers.servers,
        "HOST:PORT,...",
        shown="elastic-launch starts an etcd on this machine",
        name="elastic_server",
        environs=("PADDLE_ELASTIC_SERVER",),
        scope=Scope.STORE,
        variable="ELASTIC_ETCD",
        old_variables=("ELASTIC_SERVER", "ELASTIC_ELASTIC_SERVER"),
    )
    etcd_ca: str = setting(
        "",
        "the CA certificates with which etcd's certificate is verified, a PEM file; this flag and the next two turn on "
        "TLS, as https:// in --elastic-server does",
        readers.path("a file"),
        "FILE",
        shown="the CA certificates of this system",
        scope=Scope.STORE,
    )
    etcd_cert: str = setting(
        "",
        "the client certificate, a PEM file, if etcd requires one",
        readers.path("a file"),
        "FILE",
        shown="none",
        scope=Scope.STORE,
    )
    etcd_key: str = setting(
        "",
        "the private key of --etcd-cert, a PEM file without a passphrase; not passed to workers",
        readers.path("a file"),
        "FILE",
        shown="none",
        scope=Scope.STORE,
    )
    etcd_user: str = setting(
        "",
        "the etcd user; its password comes from --etcd-password-file or ELASTIC_ETCD_PASSWORD",
        readers.etcd_user,
        "NAME",
        shown="none",
        scope=Scope.STORE,
    )
    etcd_password_file: str = setting(
        "",
        "a file with one line, the password of --etcd-user; not passed to workers",
        readers.path("a file"),
        "FILE",
        shown="none",
        scope=Scope.STORE,
    )
    allow_plaintext_password: bool = setting(
        False,
        "allow sending the password of --etcd-user to an etcd on another machine without TLS, although anyone on the "
        "network path can read it",
        scope=Scope.STORE,
    )
    serve: str = setting(
        "",
        "start this job's etcd at this address of this machine, for nodes on other machines, and print the command for "
        "them, with the job secret that they need; 0.0.0.0 or :: listens at all addresses and needs --host",
        readers.serve,
        "ADDRESS[:PORT]",
        shown="nodes of this machine only",
        scope=Scope.PARENT,
        variable="ELASTIC_SERVE_ADDRESS",
        old_variables=("ELASTIC_SERVE",),
    )
    standalone: bool = setting(
        False,
        "run one node with its own etcd, and ignore environment variables about etcd and other hosts; the default "
        "without --elastic-server and without a list of hosts",
        scope=Scope.PARENT,
    )
    job_secret_file: str = setting(
        "",
        "a file with one line, the same on every node: the secret that the etcd of --serve, --ips or --servers "
        "requires of its clients; or set ELASTIC_JOB_SECRET to the secret itself; not passed to workers",
        readers.path("a file"),
        "FILE",
        shown="none: with --serve a random one, with --ips and --servers no secret",
        scope=Scope.STORE,
    )
    print_secret: bool = setting(
        False,
        "with --serve: print the random job secret in the command for other nodes even if stderr is a file, a pipe or "
        "a journal",
        scope=Scope.PARENT,
    )


@dataclass(frozen=True, kw_only=True)
class JobSettings(Settings, group=ELASTIC):
    """The job, and how this node takes part in it."""

    job_id: str = setting(
        "",
        "the name of the job, the same on every node: 1 to 128 letters, digits, '.', '_' and '-'",
        readers.job_id,
        "NAME",
        shown="required with --elastic-server; with a list of hosts made from their names and the script; else random",
        environs=("PADDLE_ELASTIC_JOB_ID",),
        scope=Scope.STORE | Scope.WORKER,
    )
    np: Np = setting(
        Np(low=1, high=1, first=1),
        "the number of nodes: N starts with N and continues with those that remain; N+ also admits every node that "
        "joins; MIN:MAX runs any number in the range; N:N needs all N; with parameter servers it counts the nodes of "
        "workers, and servers have separate nodes",
        readers.np,
        "N|N+|MIN:MAX",
        shown="the number of --ips; with --elastic-server --local-nodes or 1; else 1+, or N+ with --local-nodes N",
        environs=("PADDLE_ELASTIC_NP",),
        scope=Scope.JOB,
    )
    join_window_s: float = setting(
        3.0,
        "before a start with MIN:MAX, and before nodes are added, wait this long for further nodes after each one that "
        "joins, at most 15s in all",
        duration(0, JOIN_WINDOW_MAX_S),
        METAVAR,
        scope=Scope.JOB,
        old_name="settle",
    )
    scale_up_interval_s: float | None = setting(
        None,
        "the shortest time between two restarts that add nodes to a running job",
        duration(0),
        METAVAR,
        shown="1m; no limit if the script saves its state before a restart with the elastic library",
        scope=Scope.JOB,
        old_name="grow_every",
    )
    lease_ttl_s: float = setting(
        5.0,
        "a node that has not renewed its lease in etcd for this long has failed; whole seconds; a lower value reacts "
        "faster and tolerates only shorter pauses",
        lease_ttl,
        METAVAR,
        scope=Scope.JOB,
    )
    silence_timeout_s: float = setting(
        1.0,
        "evict a node that has sent no heartbeat for this long, as soon as other nodes confirm that they cannot reach "
        "it; 0.1s or more and less than --lease-ttl; a lower value reacts faster and tolerates only shorter pauses; 0 "
        "turns heartbeats off, so that only --lease-ttl counts",
        silence_timeout,
        METAVAR,
        scope=Scope.JOB,
    )
    etcd_outage_timeout_s: float = setting(
        120.0,
        "nodes that can reach each other continue training for this long while etcd is unreachable; if nodes disappear "
        "without deregistering, the next generation waits until they must have stopped",
        duration(0),
        METAVAR,
        scope=Scope.JOB,
        old_name="store_outage_limit",
    )
    connect_timeout_s: float = setting(
        60.0,
        "try to reach etcd for this long at the start, then exit with code 4",
        duration(0),
        METAVAR,
        shown="1m; 10m with a list of hosts, one of which starts etcd",
    )
    join_timeout_s: float | None = setting(
        None,
        "wait this long for enough nodes, then exit with code 4; the job stays open",
        duration(1),
        METAVAR,
        shown="no limit",
        old_name="elastic_timeout",
        old_variables=("ELASTIC_TIMEOUT",),
    )
    spot: str = setting(
        "auto",
        "watch this cloud's preemption notices and drain the node in time: aws, gcp, azure, none, or auto, which "
        "detects the cloud from the machine's firmware",
        readers.choice("auto", "aws", "gcp", "azure", "none"),
        "CLOUD",
    )
    key_prefix: str = setting(
        "/elastic", "the prefix of all keys in etcd", readers.key_prefix, "/PREFIX", scope=Scope.STORE
    )
    rerun: bool = setting(False, "run a job again that has ended; no effect while one of its nodes is alive", once=True)
    force: bool = setting(False, "this node's --np replaces the one of the running job when it joins", once=True)
    allow_mismatch: bool = setting(
        False, "join even if this node's versions differ from those of the job, with one warning"
    )
