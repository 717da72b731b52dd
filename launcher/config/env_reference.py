"""Every environment variable that is read, and every one that is set for workers, with one line each.

`--help-env` and docs/reference.md are made from these tables and from the table of flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launcher.config.flags import by_group
from launcher.config.setting import Flag


@dataclass(frozen=True, slots=True)
class DocumentedVariables:
    """Variables that say the same, and what that is. `who` has them, where processes have roles."""

    names: tuple[str, ...]
    meaning: str
    who: str = ""


READ: Final[tuple[DocumentedVariables, ...]] = (
    DocumentedVariables(
        ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"),
        "etcd's host and port, if both are set; after the other variables of --elastic_server",
    ),
    DocumentedVariables(
        ("FLAGS_START_PORT",),
        "take ports from this one upwards, the workers' first; after the variable of --port_range; not inside a worker",
    ),
    DocumentedVariables(
        ("PADDLE_PORT", "TRAINER_PORTS_NUM"),
        "the same from PADDLE_PORT, if both are set, as on PaddleCloud; after FLAGS_START_PORT; not inside a worker",
    ),
    DocumentedVariables(
        ("PADDLE_TRAINERS", "PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM"),
        "with those two and POD_IP PaddleCloud's list of hosts, PADDLE_TRAINERS is then --ips; not inside a worker",
    ),
    DocumentedVariables(
        ("CUDA_VISIBLE_DEVICES",),
        "without --gpus the cards to use; with it the cards that it may name, by their numbers in nvidia-smi, or UUIDs",
    ),
    DocumentedVariables(("ELASTIC_ETCD_PASSWORD",), "the password of --etcd_user, unless --etcd_password_file has it"),
    DocumentedVariables(("ELASTIC_JOB_SECRET",), "the secret of the job, unless --job_secret_file has it"),
    DocumentedVariables(
        ("SSL_CERT_FILE",),
        "the authorities that count with https:// in --elastic_server and without --etcd_ca, instead of the system's",
    ),
    DocumentedVariables(
        ("XDG_RUNTIME_DIR",), "a folder for the locks of nodes, where another user blocks the one in TMPDIR"
    ),
    DocumentedVariables(
        ("PYTHONSAFEPATH", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS"),
        "as python and OpenBLAS read them, for workers that start warm (docs/warm.md)",
    ),
    DocumentedVariables(
        ("ELASTIC_SPOT_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST"),
        "where the metadata server of --spot is, http://HOST:PORT; the second for AWS only, the third for Google only",
    ),
    DocumentedVariables(("NO_COLOR",), "if it is set, even to nothing, no colour and no live status on a terminal"),
    DocumentedVariables(("CI", "TERM"), "no live status if CI is set, or if TERM is `dumb` or not set"),
)
"""What is read besides the variables of flags."""

SET: Final[tuple[DocumentedVariables, ...]] = (
    DocumentedVariables(("RANK", "ROLE_RANK", "PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK"), "the rank: M_id * N + N_id"),
    DocumentedVariables(
        ("LOCAL_RANK", "PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK"),
        "N_id, the place of the worker on its node, 0 to N - 1",
    ),
    DocumentedVariables(
        ("FLAGS_selected_gpus",),
        "the index of its card among the visible ones: N_id, or 0 with --one_card_per_worker",
    ),
    DocumentedVariables(("WORLD_SIZE", "ROLE_WORLD_SIZE", "PADDLE_TRAINERS_NUM", "PADDLE_GLOBAL_SIZE"), "M * N"),
    DocumentedVariables(("LOCAL_WORLD_SIZE", "PADDLE_LOCAL_SIZE"), "N, the number of workers on each node"),
    DocumentedVariables(("GROUP_RANK",), "M_id, the place of the node in its generation"),
    DocumentedVariables(("GROUP_WORLD_SIZE", "PADDLE_NNODES"), "M, the number of nodes"),
    DocumentedVariables(("ROLE_NAME",), "the word default"),
    DocumentedVariables(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where the workers of this generation meet: a host and a port of the node with M_id 0",
    ),
    DocumentedVariables(("PADDLE_MASTER",), "the same as host:port"),
    DocumentedVariables(("TORCHELASTIC_RESTART_COUNT",), "the restarts charged so far"),
    DocumentedVariables(("TORCHELASTIC_MAX_RESTARTS",), "--max_restarts of this node"),
    DocumentedVariables(("TORCHELASTIC_RUN_ID", "ELASTIC_JOB_ID"), "the job id"),
    DocumentedVariables(("TORCHELASTIC_ERROR_FILE",), "a file where torch's @record may write its error"),
    DocumentedVariables(("TORCHELASTIC_USE_AGENT_STORE",), "False"),
    DocumentedVariables(
        ("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"),
        "every worker's host:port in rank order, with commas; left out when it is longer than 64 kB",
    ),
    DocumentedVariables(
        ("PADDLE_TRAINERS",),
        "the hosts of the nodes by M_id, with commas, as on PaddleCloud; in a parameter-server job a number",
    ),
    DocumentedVariables(
        ("ELASTIC_ENDPOINTS_FILE",),
        "the list of endpoints as a file, always: a copy of endpoints.<g>.log",
    ),
    DocumentedVariables(("PADDLE_CURRENT_ENDPOINT",), "this worker's own host:port"),
    DocumentedVariables(
        ("ELASTIC_NODE_ID",), "the node: host, a dash and 6 letters and digits, new for each start of an agent"
    ),
    DocumentedVariables(("ELASTIC_GENERATION",), "the number of the generation"),
    DocumentedVariables(
        ("ELASTIC_FENCE",), "<incarnation>/<generation>: the mark with which our library may write checkpoints"
    ),
    DocumentedVariables(("ELASTIC_RUN",), "the run of the job: 1, and one more with each --rerun"),
    DocumentedVariables(("ELASTIC_CHECKPOINT_DIR",), "--checkpoint_dir as a full path"),
    DocumentedVariables(("ELASTIC_RESUME_FROM",), "--resume_from as a full path, if it is given"),
    DocumentedVariables(("ELASTIC_RESTORE_STEP",), "--restore_step, if it is given and no step was committed since"),
    DocumentedVariables(("ELASTIC_ALLOW_ROLLBACK", "ELASTIC_CHECK_NAN"), "1 with --allow_rollback and --check_nan"),
    DocumentedVariables(
        ("ELASTIC_SAVED",),
        'the newest committed checkpoint of the job, if one is known: {"step": 500, "host": "a", "folder": "/path"}',
    ),
    DocumentedVariables(
        ("ELASTIC_PROGRESS_FILE",),
        "a file for the highest step done; our library writes it, and the agent reads it when the workers are gone",
    ),
    DocumentedVariables(
        ("ELASTIC_CHANNEL",),
        "a Unix socket where our library speaks with the agent: reports, planned stops; not set if it cannot be opened",
    ),
    DocumentedVariables(
        ("CUDA_VISIBLE_DEVICES",),
        "the cards of --gpus in that order, LOCAL_RANK is an index into it; with --one_card_per_worker the worker's "
        "own; otherwise as the agent has it",
    ),
    DocumentedVariables(
        ("CUDA_DEVICE_ORDER",), "PCI_BUS_ID where we set CUDA_VISIBLE_DEVICES: cards are counted as in nvidia-smi"
    ),
    DocumentedVariables(("PYTHONUNBUFFERED",), "1, unless it is set"),
    DocumentedVariables(("OMP_NUM_THREADS",), "1, if N > 1 and it is not set"),
    DocumentedVariables(("TORCH_NCCL_ASYNC_ERROR_HANDLING",), "1, unless it is set"),
    DocumentedVariables(("PADDLE_DISTRI_BACKEND",), "gloo, on a node without cards and unless it is set"),
    DocumentedVariables(
        ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        "--nic, or the network interface of the node's address, unless they are set or none is found",
    ),
    DocumentedVariables(
        ("no_proxy", "NO_PROXY"),
        "only where a proxy is set (http_proxy, https_proxy, all_proxy, in either case): what was there, this machine, "
        "the hosts of the generation and those of etcd; left as it was when it would be longer than 64 kB",
    ),
)
"""What a worker finds. M is the number of nodes of the generation, N the number of workers on each."""

SET_BY_ROLE: Final[tuple[DocumentedVariables, ...]] = (
    DocumentedVariables(("ELASTIC_ROLE",), "server, worker or heter", "all"),
    DocumentedVariables(("ELASTIC_INDEX",), "the index within the role, from 0", "all"),
    DocumentedVariables(
        ("ELASTIC_ROSTER_FILE",),
        'a JSON file that the agent writes anew at each revision: {"generation", "revision", "servers": '
        '["host:port", ...], "workers": [{"index", "endpoint"}, ...], "heters": [...]}; servers is by '
        'index, "" where a seat is vacant',
        "all",
    ),
    DocumentedVariables(("PADDLE_TRAINING_ROLE", "TRAINING_ROLE"), "PSERVER, TRAINER or HETER_TRAINER", "all"),
    DocumentedVariables(
        ("PADDLE_PSERVERS_IP_PORT_LIST",),
        "every server's host:port by index, with commas, nothing between two where a seat is vacant",
        "all",
    ),
    DocumentedVariables(("PADDLE_PSERVER_IPS",), "the same without the ports", "all"),
    DocumentedVariables(
        ("PADDLE_PSERVER_PORT",), "the port of the servers, if all have the same; left out otherwise", "all"
    ),
    DocumentedVariables(
        ("PADDLE_TRAINERS", "PADDLE_TRAINERS_NUM"), "the number of workers, without heterogeneous ones", "all"
    ),
    DocumentedVariables(("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"), "the workers' host:port by index", "all"),
    DocumentedVariables(
        ("PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"),
        "the heterogeneous workers' host:port by index, if there are any",
        "all",
    ),
    DocumentedVariables(("PADDLE_CURRENT_ENDPOINT",), "this process's own host:port", "all"),
    DocumentedVariables(("POD_IP", "PADDLE_PORT"), "the same in two parts", "all"),
    DocumentedVariables(("PADDLE_CURRENT_IP",), "this server's host", "servers"),
    DocumentedVariables(
        ("PADDLE_GLOO_HTTP_ENDPOINT", "PADDLE_MASTER"),
        "the host of server 0 and --http_port, or a port that its node holds",
        "all",
    ),
    DocumentedVariables(("PADDLE_GLOO_RENDEZVOUS",), "3: over HTTP", "all"),
    DocumentedVariables(("PADDLE_WITH_GLOO",), "0, unless it is set", "all"),
    DocumentedVariables(("PADDLE_TRAINER_ID",), "the index within the role", "workers, heterogeneous"),
    DocumentedVariables(
        ("RANK",),
        "workers come first: the index of a worker; the number of workers + the index of a heterogeneous one",
        "workers, heterogeneous",
    ),
    DocumentedVariables(("WORLD_SIZE",), "workers of both kinds", "workers, heterogeneous"),
    DocumentedVariables(
        ("LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
        "the place among the workers of both kinds of this node",
        "workers, heterogeneous",
    ),
    DocumentedVariables(("LOCAL_WORLD_SIZE",), "how many these are", "workers, heterogeneous"),
    DocumentedVariables(
        ("FLAGS_selected_gpus",),
        "the local rank, modulo the number of cards if CUDA_VISIBLE_DEVICES names any",
        "workers, heterogeneous",
    ),
    DocumentedVariables(
        ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        "worker or heter, the index within the role, how many have it",
        "workers, heterogeneous",
    ),
    DocumentedVariables(
        ("GROUP_RANK", "GROUP_WORLD_SIZE"),
        "M_id and the number of nodes, those of servers included",
        "workers, heterogeneous",
    ),
    DocumentedVariables(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where torch's process group of the workers meets: PADDLE_GLOO_HTTP_ENDPOINT, or a port that the "
        "node of worker 0 holds if that is another host, because torch's rank 0 opens the store on its "
        "own machine",
        "workers, heterogeneous",
    ),
    DocumentedVariables(("ELASTIC_CHANNEL",), "as in a worker of a collective job", "all"),
    DocumentedVariables(("ELASTIC_SLOT",), "the place among the processes of its node, servers included", "all"),
    DocumentedVariables(("ELASTIC_JOB_ID", "TORCHELASTIC_RUN_ID"), "the job id", "all"),
    DocumentedVariables(
        (
            "ELASTIC_NODE_ID",
            "ELASTIC_GENERATION",
            "ELASTIC_FENCE",
            "ELASTIC_RUN",
            "ELASTIC_CHECKPOINT_DIR",
            "ELASTIC_RESUME_FROM",
            "ELASTIC_RESTORE_STEP",
            "ELASTIC_ALLOW_ROLLBACK",
            "ELASTIC_CHECK_NAN",
            "ELASTIC_SAVED",
            "ELASTIC_ENDPOINTS_FILE",
            "ELASTIC_PROGRESS_FILE",
        ),
        "as in a worker of a collective job",
        "all",
    ),
    DocumentedVariables(
        (
            "TORCHELASTIC_RESTART_COUNT",
            "TORCHELASTIC_MAX_RESTARTS",
            "TORCHELASTIC_ERROR_FILE",
            "TORCHELASTIC_USE_AGENT_STORE",
        ),
        "as in a worker of a collective job",
        "all",
    ),
    DocumentedVariables(
        (
            "PYTHONUNBUFFERED",
            "OMP_NUM_THREADS",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "NCCL_SOCKET_IFNAME",
            "GLOO_SOCKET_IFNAME",
        ),
        "as in a worker of a collective job, unless they are set; OMP_NUM_THREADS if the node has more "
        "than one process",
        "all",
    ),
)
"""What a process of a parameter-server job finds instead."""


def help_text() -> str:
    """The page that `--help-env` prints."""
    lines = [
        "Variables that elastic-launch reads. What counts is, in this order: the flag, ELASTIC_<FLAG>, the variable of",
        "another launcher, the default. An empty variable counts as not set; a switch is set by 1, true, yes or on.",
        "",
    ]
    for flag in by_group():
        lines += _flag_lines(flag)
    for read in READ:
        lines += [_line(name, read.meaning) for name in read.names]
    lines += [
        "",
        "Variables that are set for workers. M is the number of nodes, N the number of workers on each; M_id and N_id",
        "are the places of the node and of the worker.",
        "",
    ]
    for made in SET:
        lines += [_line(name, made.meaning) for name in made.names]
    lines += ["", "Variables that are set for the processes of a parameter-server job instead.", ""]
    for made in SET_BY_ROLE:
        who = "" if made.who == "all" else f"{made.who}: "
        lines += [_line(name, who + made.meaning) for name in made.names]
    return "\n".join(lines) + "\n"


def _flag_lines(flag: Flag) -> list[str]:
    first, *others = flag.variables
    lines = [_line(first, f"as --{flag.name}: {flag.help}")]
    return lines + [_line(other, f"as {first}, which goes before it") for other in others]


def _line(name: str, meaning: str) -> str:
    return f"  {name:<33} {meaning}"
