"""Every environment variable that is read, and every one that is set for workers, with one line each.

`--help-env` and docs/reference.md are made from these tables and from the table of flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launcher.config.flags import Flag, by_group


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables that say the same, and what that is. `who` has them, where processes have roles."""

    names: tuple[str, ...]
    meaning: str
    who: str = ""


READ: Final[tuple[Variables, ...]] = (
    Variables(
        ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"),
        "etcd's host and port, if both are set; after the other variables of --elastic_server",
    ),
    Variables(
        ("FLAGS_START_PORT",),
        "take ports from this one upwards, the workers' first; after the variable of --port_range; not inside a worker",
    ),
    Variables(
        ("PADDLE_PORT", "TRAINER_PORTS_NUM"),
        "the same from PADDLE_PORT, if both are set, as on PaddleCloud; after FLAGS_START_PORT; not inside a worker",
    ),
    Variables(
        ("PADDLE_TRAINERS", "PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM"),
        "with those two and POD_IP PaddleCloud's list of hosts, PADDLE_TRAINERS is then --ips; not inside a worker",
    ),
    Variables(
        ("CUDA_VISIBLE_DEVICES",),
        "without --gpus the cards to use; with it the cards that it may name, by their numbers in nvidia-smi, or UUIDs",
    ),
    Variables(("ELASTIC_ETCD_PASSWORD",), "the password of --etcd_user, unless --etcd_password_file has it"),
    Variables(("ELASTIC_JOB_SECRET",), "the secret of the job, unless --job_secret_file has it"),
    Variables(
        ("SSL_CERT_FILE",),
        "the authorities that count with https:// in --elastic_server and without --etcd_ca, instead of the system's",
    ),
    Variables(("XDG_RUNTIME_DIR",), "a folder for the locks of nodes, where another user blocks the one in TMPDIR"),
    Variables(
        ("PYTHONSAFEPATH", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS"),
        "as python and OpenBLAS read them, for workers that start warm (docs/warm.md)",
    ),
    Variables(
        ("ELASTIC_SPOT_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST"),
        "where the metadata server of --spot is, http://HOST:PORT; the second for AWS only, the third for Google only",
    ),
    Variables(("NO_COLOR",), "if it is set, even to nothing, no colour and no live status on a terminal"),
    Variables(("CI", "TERM"), "no live status if CI is set, or if TERM is `dumb` or not set"),
)
"""What is read besides the variables of flags."""

SET: Final[tuple[Variables, ...]] = (
    Variables(("RANK", "ROLE_RANK", "PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK"), "the rank: M_id * N + N_id"),
    Variables(
        ("LOCAL_RANK", "PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK"),
        "N_id, the place of the worker on its node, 0 to N - 1",
    ),
    Variables(
        ("FLAGS_selected_gpus",),
        "the index of its card among the visible ones: N_id, or 0 with --one_card_per_worker",
    ),
    Variables(("WORLD_SIZE", "ROLE_WORLD_SIZE", "PADDLE_TRAINERS_NUM", "PADDLE_GLOBAL_SIZE"), "M * N"),
    Variables(("LOCAL_WORLD_SIZE", "PADDLE_LOCAL_SIZE"), "N, the number of workers on each node"),
    Variables(("GROUP_RANK",), "M_id, the place of the node in its generation"),
    Variables(("GROUP_WORLD_SIZE", "PADDLE_NNODES"), "M, the number of nodes"),
    Variables(("ROLE_NAME",), "the word default"),
    Variables(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where the workers of this generation meet: a host and a port of the node with M_id 0",
    ),
    Variables(("PADDLE_MASTER",), "the same as host:port"),
    Variables(("TORCHELASTIC_RESTART_COUNT",), "the restarts charged so far"),
    Variables(("TORCHELASTIC_MAX_RESTARTS",), "--max_restarts of this node"),
    Variables(("TORCHELASTIC_RUN_ID", "ELASTIC_JOB_ID"), "the job id"),
    Variables(("TORCHELASTIC_ERROR_FILE",), "a file where torch's @record may write its error"),
    Variables(("TORCHELASTIC_USE_AGENT_STORE",), "False"),
    Variables(
        ("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"),
        "every worker's host:port in rank order, with commas; left out when it is longer than 64 kB",
    ),
    Variables(
        ("PADDLE_TRAINERS",),
        "the hosts of the nodes by M_id, with commas, as on PaddleCloud; in a parameter-server job a number",
    ),
    Variables(
        ("ELASTIC_ENDPOINTS_FILE",),
        "the list of endpoints as a file, always: a copy of endpoints.<g>.log",
    ),
    Variables(("PADDLE_CURRENT_ENDPOINT",), "this worker's own host:port"),
    Variables(("ELASTIC_NODE_ID",), "the node: host, a dash and 6 letters and digits, new for each start of an agent"),
    Variables(("ELASTIC_GENERATION",), "the number of the generation"),
    Variables(("ELASTIC_FENCE",), "<incarnation>/<generation>: the mark with which our library may write checkpoints"),
    Variables(("ELASTIC_RUN",), "the run of the job: 1, and one more with each --rerun"),
    Variables(("ELASTIC_CHECKPOINT_DIR",), "--checkpoint_dir as a full path"),
    Variables(("ELASTIC_RESUME_FROM",), "--resume_from as a full path, if it is given"),
    Variables(("ELASTIC_RESTORE_STEP",), "--restore_step, if it is given and no step was committed since"),
    Variables(("ELASTIC_ALLOW_ROLLBACK", "ELASTIC_CHECK_NAN"), "1 with --allow_rollback and --check_nan"),
    Variables(
        ("ELASTIC_SAVED",),
        'the newest committed checkpoint of the job, if one is known: {"step": 500, "host": "a", "folder": "/path"}',
    ),
    Variables(
        ("ELASTIC_PROGRESS_FILE",),
        "a file for the highest step done; our library writes it, and the agent reads it when the workers are gone",
    ),
    Variables(
        ("ELASTIC_CHANNEL",),
        "a Unix socket where our library speaks with the agent: reports, planned stops; not set if it cannot be opened",
    ),
    Variables(
        ("CUDA_VISIBLE_DEVICES",),
        "the cards of --gpus in that order, LOCAL_RANK is an index into it; with --one_card_per_worker the worker's "
        "own; otherwise as the agent has it",
    ),
    Variables(
        ("CUDA_DEVICE_ORDER",), "PCI_BUS_ID where we set CUDA_VISIBLE_DEVICES: cards are counted as in nvidia-smi"
    ),
    Variables(("PYTHONUNBUFFERED",), "1, unless it is set"),
    Variables(("OMP_NUM_THREADS",), "1, if N > 1 and it is not set"),
    Variables(("TORCH_NCCL_ASYNC_ERROR_HANDLING",), "1, unless it is set"),
    Variables(("PADDLE_DISTRI_BACKEND",), "gloo, on a node without cards and unless it is set"),
    Variables(
        ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        "--nic, or the network interface of the node's address, unless they are set or none is found",
    ),
    Variables(
        ("no_proxy", "NO_PROXY"),
        "only where a proxy is set (http_proxy, https_proxy, all_proxy, in either case): what was there, this machine, "
        "the hosts of the generation and those of etcd; left as it was when it would be longer than 64 kB",
    ),
)
"""What a worker finds. M is the number of nodes of the generation, N the number of workers on each."""

SET_BY_ROLE: Final[tuple[Variables, ...]] = (
    Variables(("ELASTIC_ROLE",), "server, worker or heter", "all"),
    Variables(("ELASTIC_INDEX",), "the index within the role, from 0", "all"),
    Variables(
        ("ELASTIC_ROSTER_FILE",),
        'a JSON file that the agent writes anew at each revision: {"generation", "revision", "servers": '
        '["host:port", ...], "workers": [{"index", "endpoint"}, ...], "heters": [...]}; servers is by '
        'index, "" where a seat is vacant',
        "all",
    ),
    Variables(("PADDLE_TRAINING_ROLE", "TRAINING_ROLE"), "PSERVER, TRAINER or HETER_TRAINER", "all"),
    Variables(
        ("PADDLE_PSERVERS_IP_PORT_LIST",),
        "every server's host:port by index, with commas, nothing between two where a seat is vacant",
        "all",
    ),
    Variables(("PADDLE_PSERVER_IPS",), "the same without the ports", "all"),
    Variables(("PADDLE_PSERVER_PORT",), "the port of the servers, if all have the same; left out otherwise", "all"),
    Variables(("PADDLE_TRAINERS", "PADDLE_TRAINERS_NUM"), "the number of workers, without heterogeneous ones", "all"),
    Variables(("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"), "the workers' host:port by index", "all"),
    Variables(
        ("PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"),
        "the heterogeneous workers' host:port by index, if there are any",
        "all",
    ),
    Variables(("PADDLE_CURRENT_ENDPOINT",), "this process's own host:port", "all"),
    Variables(("POD_IP", "PADDLE_PORT"), "the same in two parts", "all"),
    Variables(("PADDLE_CURRENT_IP",), "this server's host", "servers"),
    Variables(
        ("PADDLE_GLOO_HTTP_ENDPOINT", "PADDLE_MASTER"),
        "the host of server 0 and --http_port, or a port that its node holds",
        "all",
    ),
    Variables(("PADDLE_GLOO_RENDEZVOUS",), "3: over HTTP", "all"),
    Variables(("PADDLE_WITH_GLOO",), "0, unless it is set", "all"),
    Variables(("PADDLE_TRAINER_ID",), "the index within the role", "workers, heterogeneous"),
    Variables(
        ("RANK",),
        "workers come first: the index of a worker; the number of workers + the index of a heterogeneous one",
        "workers, heterogeneous",
    ),
    Variables(("WORLD_SIZE",), "workers of both kinds", "workers, heterogeneous"),
    Variables(
        ("LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
        "the place among the workers of both kinds of this node",
        "workers, heterogeneous",
    ),
    Variables(("LOCAL_WORLD_SIZE",), "how many these are", "workers, heterogeneous"),
    Variables(
        ("FLAGS_selected_gpus",),
        "the local rank, modulo the number of cards if CUDA_VISIBLE_DEVICES names any",
        "workers, heterogeneous",
    ),
    Variables(
        ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        "worker or heter, the index within the role, how many have it",
        "workers, heterogeneous",
    ),
    Variables(
        ("GROUP_RANK", "GROUP_WORLD_SIZE"),
        "M_id and the number of nodes, those of servers included",
        "workers, heterogeneous",
    ),
    Variables(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where torch's process group of the workers meets: PADDLE_GLOO_HTTP_ENDPOINT, or a port that the "
        "node of worker 0 holds if that is another host, because torch's rank 0 opens the store on its "
        "own machine",
        "workers, heterogeneous",
    ),
    Variables(("ELASTIC_CHANNEL",), "as in a worker of a collective job", "all"),
    Variables(("ELASTIC_SLOT",), "the place among the processes of its node, servers included", "all"),
    Variables(("ELASTIC_JOB_ID", "TORCHELASTIC_RUN_ID"), "the job id", "all"),
    Variables(
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
    Variables(
        (
            "TORCHELASTIC_RESTART_COUNT",
            "TORCHELASTIC_MAX_RESTARTS",
            "TORCHELASTIC_ERROR_FILE",
            "TORCHELASTIC_USE_AGENT_STORE",
        ),
        "as in a worker of a collective job",
        "all",
    ),
    Variables(
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
