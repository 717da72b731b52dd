"""Every flag of `elastic-launch`: one table, from which `launcher.config.argv` makes parser, help and variables.

A new flag is a new row here and a new field of `launcher.config.config.Config` of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.config import readers

GRACE_S: Final = 15.0
"""`--grace`: what workers get between SIGTERM and SIGKILL when nothing is broken."""
LOSS_GRACE_S: Final = 2.0
"""`--loss_grace`: the same after a loss or a failure."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: how it is written, read, explained, and which field of `Config` it fills.

    `read` turns text into the field's value and raises ValueError with one clear sentence; None marks a switch.
    `shown` is the default in the help. `environs` are other launchers' variables, read after our own.
    """

    name: str
    group: str
    help: str
    field: str
    read: Callable[[str], Any] | None = None
    default: Any = None
    shown: str = ""
    metavar: str = ""
    environs: tuple[str, ...] = ()

    @property
    def switch(self) -> bool:
        """Tell whether the flag takes no value."""
        return self.read is None

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that stand for it, the first one being the one to show."""
        own = f"ELASTIC_{self.name.upper()}"
        short = (own.removeprefix("ELASTIC_"),) if self.name.startswith("elastic_") else ()
        return (*short, own, *self.environs)


BASE, COLLECTIVE, SERVERS, ELASTIC = "Base", "Collective", "Parameter-Server", "Elastic"
WORKERS, LOGS = "Workers", "Logs"
GROUPS: Final = (BASE, COLLECTIVE, SERVERS, ELASTIC, WORKERS, LOGS)
"""The groups of the help, in their order."""

FLAGS: Final[tuple[Flag, ...]] = (
    Flag(
        name="run_mode",
        group=BASE,
        field="run_mode",
        help="collective, ps (parameter servers) or ps-heter (and heterogeneous workers)",
        read=readers.choice("collective", "ps", "ps-heter"),
        default="",
        shown="collective; ps when a flag of the parameter-server group is given",
        metavar="MODE",
    ),
    Flag(
        name="gpus",
        group=BASE,
        field="gpus",
        help='the cards to use, by their physical number or UUID, in this order: --gpus "1, 3"; one worker for each; '
        "as many on every node",
        read=readers.gpus,
        default=(),
        shown="all cards",
        metavar="ID,...",
    ),
    Flag(
        name="one_card_per_worker",
        group=BASE,
        field="one_card_per_worker",
        help="each worker sees its own card only, as cuda:0, for scripts that just say cuda",
        default=False,
    ),
    Flag(
        name="nproc_per_node",
        group=BASE,
        field="slots",
        help="workers on each node: a number, auto (one for each card, else 1), gpu or cpu; the same on every node; "
        "not with parameter servers",
        read=readers.nproc,
        default="auto",
        shown="auto",
        metavar="N",
    ),
    Flag(
        name="local_nodes",
        group=BASE,
        field="local_nodes",
        help="run K nodes on this machine; without --elastic_server they bring their own etcd",
        read=readers.count(1, readers.LOCAL_NODES_MAX),
        default=0,
        shown="1 without a server",
        metavar="K",
    ),
    Flag(
        name="host",
        group=ELASTIC,
        field="host",
        help="the name or address under which the other nodes reach this one",
        read=readers.host,
        default="",
        shown="the address of the route to the store",
        metavar="HOST",
        environs=("POD_IP",),
    ),
    Flag(
        name="nic",
        group=BASE,
        field="nic",
        help="the network interface for this node's address and for NCCL and gloo",
        read=readers.nic,
        default="",
        shown="the one that has the address of --host",
        metavar="NAME",
    ),
    Flag(
        name="port_range",
        group=BASE,
        field="port_range",
        help="take the node's own ports from this range: LOW:HIGH; a node needs one for each worker and 4 more; "
        "gloo, NCCL and etcd have others",
        read=readers.port_range,
        default=None,
        shown="any free ports",
        metavar="LOW:HIGH",
    ),
    Flag(
        name="ips",
        group=COLLECTIVE,
        field="ips",
        help="names or addresses of all nodes; M_id is the place in this list, the same list on every node; without "
        "--elastic_server the host that sorts first serves",
        read=readers.hosts,
        default=(),
        shown="nodes find each other in etcd",
        metavar="HOST,...",
    ),
    Flag(
        name="ctrl_port",
        group=COLLECTIVE,
        field="ctrl_port",
        help="the port where the workers meet (MASTER_PORT) in every generation, the same on every node",
        read=readers.port,
        default=0,
        shown="any free port",
        metavar="PORT",
    ),
    Flag(
        name="serve_port",
        group=COLLECTIVE,
        field="serve_port",
        help="with --ips or --servers and without --elastic_server: the port of the etcd that the first host serves",
        read=readers.port,
        default=12379,
        metavar="PORT",
    ),
    Flag(
        name="servers",
        group=SERVERS,
        field="ps_servers",
        help="the parameter servers, HOST:PORT with commas; each node starts those that are its own",
        read=readers.endpoint_list,
        default=(),
        shown="none",
        metavar="HOST:PORT,...",
    ),
    Flag(
        name="workers",
        group=SERVERS,
        field="ps_workers",
        help="the workers, HOST:PORT or HOST with commas; each node starts those that are its own",
        read=readers.worker_list,
        default=(),
        shown="none",
        metavar="HOST[:PORT],...",
    ),
    Flag(
        name="heter_workers",
        group=SERVERS,
        field="ps_heter_workers",
        help="the heterogeneous workers of ps-heter, HOST:PORT or HOST with commas",
        read=readers.worker_list,
        default=(),
        shown="none",
        metavar="HOST[:PORT],...",
    ),
    Flag(
        name="server_num",
        group=SERVERS,
        field="server_num",
        help="parameter servers; without --np and lists all of them here, with --np one on each of the first nodes",
        read=readers.count(1, readers.SLOTS_MAX),
        default=0,
        shown="the length of --servers",
        metavar="N",
    ),
    Flag(
        name="worker_num",
        group=SERVERS,
        field="worker_num",
        help="workers; without --np and lists all of them here, with --np as many on every node that has no server",
        read=readers.count(1, readers.SLOTS_MAX),
        default=0,
        shown="the length of --workers",
        metavar="N",
    ),
    Flag(
        name="heter_worker_num",
        group=SERVERS,
        field="heter_worker_num",
        help="heterogeneous workers, counted as --worker_num",
        read=readers.count(1, readers.SLOTS_MAX),
        default=0,
        shown="the length of --heter_workers",
        metavar="N",
    ),
    Flag(
        name="http_port",
        group=SERVERS,
        field="http_port",
        help="the port on server 0's host where workers can meet (PADDLE_GLOO_HTTP_ENDPOINT, MASTER_PORT)",
        read=readers.port,
        default=0,
        shown="any free port",
        metavar="PORT",
    ),
    Flag(
        name="elastic_server",
        group=ELASTIC,
        field="servers",
        help="etcd's endpoints: host:port, more of them with commas",
        read=readers.servers,
        default=(),
        shown="an etcd of its own, on this machine",
        metavar="HOST:PORT,...",
        environs=("PADDLE_ELASTIC_SERVER",),
    ),
    Flag(
        name="etcd_ca",
        group=ELASTIC,
        field="etcd_ca",
        help="the authority that signed etcd's certificate, a file in PEM; with this and the two below TLS is spoken, "
        "as with https:// in --elastic_server",
        read=readers.file,
        default="",
        shown="the authorities that this system trusts",
        metavar="FILE",
    ),
    Flag(
        name="etcd_cert",
        group=ELASTIC,
        field="etcd_cert",
        help="our own certificate, a file in PEM, where etcd wants one of its clients",
        read=readers.file,
        default="",
        shown="none",
        metavar="FILE",
    ),
    Flag(
        name="etcd_key",
        group=ELASTIC,
        field="etcd_key",
        help="the key of --etcd_cert, a file in PEM without a passphrase; workers do not get it",
        read=readers.file,
        default="",
        shown="none",
        metavar="FILE",
    ),
    Flag(
        name="etcd_user",
        group=ELASTIC,
        field="etcd_user",
        help="the user of etcd; the password comes from --etcd_password_file or ELASTIC_ETCD_PASSWORD",
        read=readers.etcd_user,
        default="",
        shown="none",
        metavar="NAME",
    ),
    Flag(
        name="etcd_password_file",
        group=ELASTIC,
        field="etcd_password_file",
        help="a file with the password of --etcd_user, one line; workers do not get it",
        read=readers.file,
        default="",
        shown="none",
        metavar="FILE",
    ),
    Flag(
        name="allow_plaintext_password",
        group=ELASTIC,
        field="allow_plaintext_password",
        help="send the password of --etcd_user to an etcd without TLS on another machine, where everybody on the "
        "network path can read it; without this flag that is refused",
        default=False,
    ),
    Flag(
        name="serve",
        group=ELASTIC,
        field="serve",
        help="serve this job's etcd at this address of this machine, for nodes of other machines; they need the secret "
        "of the job, and the command for them is printed; 0.0.0.0 or :: with --host: at all addresses of this machine",
        read=readers.serve,
        default="",
        shown="an etcd of its own is for this machine alone",
        metavar="ADDRESS[:PORT]",
    ),
    Flag(
        name="job_secret_file",
        group=ELASTIC,
        field="job_secret_file",
        help="a file with one line, the same on every node: whoever has it gets into the etcd that --ips, --servers or "
        "--serve serves, and nobody else; ELASTIC_JOB_SECRET has the secret itself; workers do not get it",
        read=readers.file,
        default="",
        shown="none: with --serve a random one, with --ips and --servers no secret",
        metavar="FILE",
    ),
    Flag(
        name="print_secret",
        group=ELASTIC,
        field="print_secret",
        help="with --serve: print the random secret in the command for other nodes also where stderr is no terminal: a "
        "file, a pipe, a journal",
        default=False,
    ),
    Flag(
        name="job_id",
        group=ELASTIC,
        field="job_id",
        help="the name of the job, the same on every node; up to 128 letters, digits, '.', '_' and '-'",
        read=readers.job_id,
        default="",
        shown="with a server none, with a list of hosts the script and their names, else a random one",
        metavar="NAME",
        environs=("PADDLE_ELASTIC_JOB_ID",),
    ),
    Flag(
        name="np",
        group=ELASTIC,
        field="np",
        help="nodes: N starts with N and goes on with what remains; N+ also takes in every node that joins; MIN:MAX "
        "runs any number between; N:N needs all; with parameter servers the nodes of workers alone, and then servers "
        "have nodes of their own",
        read=readers.np,
        default=None,
        shown="the number of --ips; with an etcd of its own 1+, or N+ with --local_nodes N; else --local_nodes or 1",
        metavar="N|N+|MIN:MAX",
        environs=("PADDLE_ELASTIC_NP",),
    ),
    Flag(
        name="settle",
        group=ELASTIC,
        field="settle_s",
        help="a start with MIN:MAX, or a growth, waits this many seconds after the last arrival, 15 at most in all",
        read=readers.seconds(0, readers.SETTLE_MAX_S),
        default=3.0,
        metavar="SECONDS",
    ),
    Flag(
        name="grow_every",
        group=ELASTIC,
        field="grow_every_s",
        help="newcomers are taken into a running job at most once in this many seconds",
        read=readers.seconds(0),
        default=None,
        shown="60; without a limit for a script that saves before it leaves, with our library",
        metavar="SECONDS",
    ),
    Flag(
        name="lease_ttl",
        group=ELASTIC,
        field="lease_ttl_s",
        help="a node that is silent for this long is lost; whole seconds; less is faster and less forgiving",
        read=readers.lease_ttl,
        default=5.0,
        metavar="SECONDS",
    ),
    Flag(
        name="store_outage_limit",
        group=ELASTIC,
        field="store_outage_limit_s",
        help="the longest that nodes which hear each other train on while etcd cannot be reached; a new world waits "
        "for it if the old one vanished without a word",
        read=readers.seconds(0),
        default=120.0,
        metavar="SECONDS",
    ),
    Flag(
        name="connect_timeout",
        group=ELASTIC,
        field="connect_timeout_s",
        help="how long to try to reach etcd at the start, before exit 4",
        read=readers.seconds(0),
        default=60.0,
        shown="60; 600 where a host of a list serves etcd",
        metavar="SECONDS",
    ),
    Flag(
        name="elastic_timeout",
        group=ELASTIC,
        field="elastic_timeout_s",
        help="leave with exit 4 after waiting this long for enough nodes; the job stays open",
        read=readers.seconds(1),
        default=None,
        shown="none: wait",
        metavar="SECONDS",
    ),
    Flag(
        name="spot",
        group=ELASTIC,
        field="spot",
        help="whose notice that this machine is taken back is watched for, to drain in time: aws, gcp, azure, none, or "
        "auto: what the firmware says of this machine",
        read=readers.choice("auto", "aws", "gcp", "azure", "none"),
        default="auto",
        metavar="CLOUD",
    ),
    Flag(
        name="key_prefix",
        group=ELASTIC,
        field="key_prefix",
        help="every key of ours in etcd is below this",
        read=readers.key_prefix,
        default="/elastic",
        metavar="/PREFIX",
    ),
    Flag(
        name="rerun",
        group=ELASTIC,
        field="rerun",
        help="run a job again that has ended; no effect while one of its nodes lives",
        default=False,
    ),
    Flag(
        name="force",
        group=ELASTIC,
        field="force",
        help="this node's --np replaces the one of the running job when it joins",
        default=False,
    ),
    Flag(
        name="allow_mismatch",
        group=ELASTIC,
        field="allow_mismatch",
        help="join although this node's versions differ from those of the job; says so in one line",
        default=False,
    ),
    Flag(
        name="max_restarts",
        group=WORKERS,
        field="restarts_max",
        help="restarts after failures, for the whole job; lost or new nodes are free",
        read=readers.count(0, readers.RESTARTS_MAX),
        default=3,
        metavar="N",
    ),
    Flag(
        name="host_cooldown",
        group=WORKERS,
        field="host_cooldown_s",
        help="a host whose workers alone fail twice in a row without progress is kept out for so long, each time "
        "after that twice as long, up to 30 minutes; 0: never",
        read=readers.seconds(0),
        default=60.0,
        metavar="SECONDS",
    ),
    Flag(
        name="grace",
        group=WORKERS,
        field="grace_s",
        help="seconds between SIGTERM and SIGKILL when workers are stopped for a planned change",
        read=readers.seconds(0),
        default=GRACE_S,
        metavar="SECONDS",
    ),
    Flag(
        name="loss_grace",
        group=WORKERS,
        field="loss_grace_s",
        help="the same after a loss or a failure, when nothing useful can be saved",
        read=readers.seconds(0),
        default=None,
        shown=f"{LOSS_GRACE_S:g}, or --grace if that is less",
        metavar="SECONDS",
    ),
    Flag(
        name="fatal_exit_codes",
        group=WORKERS,
        field="fatal_exit_codes",
        help="a worker that exits with one of these fails the job without a restart",
        read=readers.exit_codes,
        default=(),
        shown="none",
        metavar="CODE,...",
    ),
    Flag(
        name="retry_startup_errors",
        group=WORKERS,
        field="retry_startup_errors",
        help="restart also a script that cannot start: one that ends with a syntax error, a failed import or a usage "
        "error (exit code 2) in the first generation, before it has a process group; by default the job fails at once",
        default=False,
    ),
    Flag(
        name="hang_timeout",
        group=WORKERS,
        field="hang_timeout_s",
        help="a worker that has reported a step and then none for this long has failed, its stacks go to its log; "
        "0 turns this off",
        read=readers.seconds(0),
        default=1800.0,
        metavar="SECONDS",
    ),
    Flag(
        name="reach_timeout",
        group=WORKERS,
        field="reach_timeout_s",
        help="when workers wait for others or make no step for this long while another machine cannot be reached, the "
        "job goes on without the machine that is cut off; 0 turns this off",
        read=readers.seconds(0),
        default=30.0,
        metavar="SECONDS",
    ),
    Flag(
        name="check_nan",
        group=WORKERS,
        field="check_nan",
        help="with our library: a commit refuses numbers that are not finite, and says where they came from",
        default=False,
        environs=("FLAGS_check_nan_inf",),
    ),
    Flag(
        name="checkpoint_dir",
        group=WORKERS,
        field="checkpoint_dir",
        help="what workers find in ELASTIC_CHECKPOINT_DIR; storage that every node reads",
        read=readers.folder,
        default="",
        shown="checkpoints/<job_id>",
        metavar="DIR",
    ),
    Flag(
        name="resume_from",
        group=WORKERS,
        field="resume_from",
        help="with our library: start from this checkpoint, a folder or a file, when the job has none of its own",
        read=readers.path,
        default="",
        shown="none",
        metavar="PATH",
    ),
    Flag(
        name="restore_step",
        group=WORKERS,
        field="restore_step",
        help="with our library: go back to the checkpoint of this step, once; newer ones are set aside",
        read=readers.count(0, readers.STEP_MAX),
        default=None,
        shown="the newest",
        metavar="N",
    ),
    Flag(
        name="allow_rollback",
        group=WORKERS,
        field="allow_rollback",
        help="with our library: go on from an older checkpoint, or anew, when the newest one of the job cannot be read",
        default=False,
    ),
    Flag(
        name="save_limit",
        group=WORKERS,
        field="save_limit_s",
        help="so long a planned stop lets a script with our library finish the common step and save; --grace comes "
        "after it",
        read=readers.seconds(0),
        default=120.0,
        metavar="SECONDS",
    ),
    Flag(
        name="memory_limit",
        group=WORKERS,
        field="memory_limit_bytes",
        help="with our library: the most memory of a node that copies of the state may take, with a unit: 8GB or 8GiB",
        read=readers.size,
        default=None,
        shown="half of what is available",
        metavar="SIZE",
    ),
    Flag(
        name="preload",
        group=WORKERS,
        field="preload",
        help="modules that are loaded once on each node, beside torch, before workers are forked: pandas,my.model",
        read=readers.modules,
        default=(),
        shown="none",
        metavar="MODULE,...",
    ),
    Flag(
        name="no_warm",
        group=WORKERS,
        field="no_warm",
        help="start each worker as a process of its own from the first import on, some seconds slower",
        default=False,
    ),
    Flag(
        name="log_dir",
        group=BASE,
        field="log_dir",
        help="the folder for workerlog.<rank> and endpoints.log",
        read=readers.folder,
        default="log/",
        metavar="DIR",
    ),
    Flag(
        name="log_overwrite",
        group=LOGS,
        field="log_overwrite",
        help="begin the logs anew at the start of the agent instead of appending to them",
        default=False,
    ),
    Flag(
        name="log_max_bytes",
        group=LOGS,
        field="log_bytes_max",
        help="the most that the log of one worker takes on disk; the first lines of a start and the newest are kept; "
        "0 turns this off",
        read=readers.log_size,
        default=readers.LOG_BYTES_MAX,
        shown="1GB",
        metavar="SIZE",
    ),
    Flag(
        name="log_rotate",
        group=LOGS,
        field="log_rotate",
        help="so many older files of the log of one worker are kept: workerlog.<rank>.1 is the newest of them; all "
        "share --log_max_bytes",
        read=readers.count(1, readers.LOG_ROTATE_MAX),
        default=1,
        metavar="K",
    ),
    Flag(
        name="log_format",
        group=LOGS,
        field="log_format",
        help="what the console and launcher.log have: text, or json (one object on each line, for programs)",
        read=readers.choice("text", "json"),
        default="text",
        metavar="FORMAT",
    ),
    Flag(
        name="console",
        group=LOGS,
        field="console",
        help="whose output is shown here: rank0 (on the node that has it), local0 (this node's first), all, none",
        read=readers.choice("rank0", "local0", "all", "none"),
        default="rank0",
        metavar="WHICH",
    ),
    Flag(
        name="metrics_port",
        group=LOGS,
        field="metrics_at",
        help="answer /metrics (Prometheus), /healthz and /readyz there, on loopback unless an address is named; with "
        "--local_nodes each further node takes the next port; 0 turns this off",
        read=readers.metrics_port,
        default=None,
        shown="off",
        metavar="[ADDRESS:]PORT",
    ),
    Flag(
        name="no_live",
        group=LOGS,
        field="no_live",
        help="no status below the output on a terminal",
        default=False,
    ),
    Flag(name="verbose", group=LOGS, field="verbose", help="say more of what the agent does", default=False),
    Flag(name="quiet", group=LOGS, field="quiet", help="say only what is wrong", default=False),
)

BY_NAME: Final[Mapping[str, Flag]] = {flag.name: flag for flag in FLAGS}


def by_group() -> tuple[Flag, ...]:
    """Every flag, in the order of the help."""
    return tuple(sorted(FLAGS, key=lambda flag: GROUPS.index(flag.group)))


PS_FLAGS: Final = (
    "servers",
    "workers",
    "heter_workers",
    "server_num",
    "worker_num",
    "heter_worker_num",
    "http_port",
)
