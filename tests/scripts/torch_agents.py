"""Nodes of torch's own elastic agent on our backend: a script that runs them, and how a test starts and reads it.

As a script it gets one `AgentNode` in JSON per argument. A node alone has the main thread, where torch's agent handles
signals; several have a thread each. Each prints `ended` and one JSON object when it ends. Workers write a line in one
piece, because all of them share one pipe. On stderr it prints `supervises` and the number of nodes when torch's agent
knows its new workers.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from tests.support.agent_process import Node
    from tests.support.torchrun_harness import Torchruns

ENVIRONMENT = """
import json, os, sys
names = [name for name in os.environ if any(word in name for word in ("RANK", "ROLE", "WORLD", "MASTER", "TORCH"))]
sys.stdout.write(f"environment {json.dumps({name: os.environ[name] for name in names})}\\n")
"""
"""A worker that prints what torch's launchers set, in one piece, and ends well."""

UNEVEN = """
import os, sys, time
rank, world, restarts = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
sys.stdout.write(f"works {rank} {world} {restarts}\\n")
sys.stdout.flush()
while not os.path.exists("fail") or rank % 2 == 0:
    time.sleep(0.02)
sys.exit(7)
"""
"""Odd ranks fail when the file "fail" is there; even ranks run until they are stopped."""

DRIFTING = """
import os, sys, time
while sys.argv[1] == "late" and not os.path.exists("end"):
    time.sleep(0.02)
sys.stdout.write(f"{sys.argv[1]} worker ends\\n")
"""
"""A worker that ends at once, or, with "late", when the file "end" is there."""

RECORDED = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise RuntimeError(f"rank {os.environ['RANK']} cannot go on")

main()
"""
"""A worker that leaves its error in torch's error file."""


@dataclass(frozen=True, kw_only=True)
class AgentNode:
    """One node. `entry` is a function of this module or the path of a program, with its `arguments`.

    `launch` has torch's `elastic_launch` run it instead of an agent that is made here. `conf` is the --rdzv-conf.
    `shutdown_first` has the rendezvous shut down before the failure of workers is raised. Without `named`, torch's
    launcher makes up a job ID.
    """

    entry: str
    arguments: list[str] = field(default_factory=list)
    nnodes: tuple[int, int] = (1, 1)
    workers: int = 1
    restarts: int = 0
    role: str = "default"
    method: str = "spawn"
    barrier_s: float = 60.0
    master: tuple[str, int] | None = None
    log_prefix: str = ""
    conf: dict[str, str] = field(default_factory=dict)
    launch: bool = False
    shutdown_first: bool = False
    named: bool = True
    endpoint: str = ""
    job_id: str = ""


# --- what workers of functions do ---------------------------------------------------------------------------------


def answer(text: str) -> dict[str, object]:
    """Return one value of each kind."""
    import torch

    return {"rank": int(os.environ["RANK"]), "text": text, "nothing": None, "tensor": torch.ones(2, 3)}


def summed() -> int:
    """Return the sum of all ranks, which a collective makes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = torch.tensor(dist.get_rank())
    dist.all_reduce(rank)
    sys.stdout.write(f"sum {rank.item()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()
    return int(rank.item())


def break_down() -> None:
    """Raise what no restart helps against."""
    raise RuntimeError(f"rank {os.environ['RANK']} cannot go on")


def die_once(rank: str) -> int:
    """Return how often the workers were restarted; one rank kills itself if they were not."""
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if os.environ["RANK"] == rank and restarts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return restarts


def call(text: str) -> str | None:
    """Call the node with the role "callee" by torch's RPC, or be the one that is called."""
    from torch.distributed import rpc

    role = os.environ["ROLE_NAME"]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(role, rank=rank, world_size=world)  # type: ignore[no-untyped-call]
    answered = rpc.rpc_sync("callee", str.upper, args=(text,)) if role == "caller" else None
    rpc.shutdown()
    return answered


FUNCTIONS: dict[str, Callable[..., object]] = {
    function.__name__: function for function in (answer, summed, break_down, die_once, call)
}


# --- the nodes ----------------------------------------------------------------------------------------------------


def run(node: AgentNode) -> dict[int, Any]:
    """Run the node to its end; what its workers returned, by rank. Raises what torch raises."""
    from torch.distributed.elastic.multiprocessing import Std
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    logs = DefaultLogsSpecs(tempfile.mkdtemp(dir="."), tee=Std.ALL if node.log_prefix else Std.NONE)
    low, high = node.nnodes
    conf: dict[str, Any] = {"last_call_timeout": "0.5", "lease_ttl": "10", "scale_up_interval": "0", **node.conf}

    def launched() -> dict[int, Any]:
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=low,
            max_nodes=high,
            nproc_per_node=node.workers,
            logs_specs=logs,
            run_id=node.job_id if node.named else "",
            role=node.role,
            rdzv_backend="elastic-etcd",
            rdzv_endpoint=node.endpoint,
            rdzv_configs=conf,
            max_restarts=node.restarts,
            monitor_interval=0.02,
            start_method=node.method,
            log_line_prefix_template=node.log_prefix or None,
        )
        result: dict[int, Any] = elastic_launch(config, FUNCTIONS.get(node.entry, node.entry))(*node.arguments)
        return result

    def supervised() -> dict[int, Any]:
        return _supervise(
            node, RendezvousParameters("elastic-etcd", node.endpoint, node.job_id, low, high, **conf), logs
        )

    return record(launched if node.launch else supervised)() or {}


def _supervise(node: AgentNode, parameters: RendezvousParameters, logs: Any) -> dict[int, Any]:
    from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    class Agent(LocalElasticAgent):
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            pids: dict[int, Any] = super()._start_workers(worker_group)
            # Before this, a signal makes torch's agent forget workers that it has just started.
            sys.stderr.write(f"supervises {worker_group.group_world_size}\n")
            return pids

    handler = get_rendezvous_handler(parameters)
    try:
        address, port = node.master or (None, None)
        spec = WorkerSpec(
            role=node.role,
            local_world_size=node.workers,
            entrypoint=FUNCTIONS.get(node.entry, node.entry),
            args=tuple(node.arguments),
            rdzv_handler=handler,
            max_restarts=node.restarts,
            monitor_interval=0.02,
            master_addr=address,
            master_port=port,
        )
        agent = Agent(
            spec,
            logs,
            start_method=node.method,
            exit_barrier_timeout=node.barrier_s,
            log_line_prefix_template=node.log_prefix or None,
        )
        result = agent.run(node.role)
        if node.shutdown_first:
            handler.shutdown()
        if result.is_failed():
            raise ChildFailedError(node.entry, result.failures)
        returned: dict[int, Any] = result.return_values
        return returned
    finally:
        handler.shutdown()


def _report(number: int, node: AgentNode) -> bool:
    """Run the node, and print how it ended; tell whether it ended well."""
    events: list[str] = []

    class Events(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            event = json.loads(record.getMessage())
            if event["source"] == "AGENT":
                events.append(event["metadata"]["state"])

    logging.getLogger("torchelastic-events-null").addHandler(Events())
    ended: dict[str, Any] = {"node": number}
    try:
        ended["returned"] = run(node)
    except BaseException as error:  # noqa: BLE001  # The test judges it.
        ended["error"] = [kind.__name__ for kind in type(error).__mro__]
        ended["text"] = str(error)
        ended["failures"] = {
            rank: [failure.exitcode, failure.message] for rank, failure in getattr(error, "failures", {}).items()
        }
    ended["events"] = [state for state in events if state in ("SUCCEEDED", "FAILED")]
    sys.stdout.write(f"ended {json.dumps(ended, default=lambda tensor: list(tensor.shape))}\n")
    sys.stdout.flush()
    return "returned" in ended


def main() -> int:
    """Run the nodes."""
    multiprocessing.set_forkserver_preload([__name__, "torch.distributed"])
    nodes = [AgentNode(**json.loads(text)) for text in sys.argv[1:]]
    if len(nodes) == 1:
        return 0 if _report(0, nodes[0]) else 1
    import torch.distributed.elastic.agent.server.local_elastic_agent  # noqa: F401  # Once, before the threads need it.

    well: list[bool] = []
    threads = [
        threading.Thread(target=lambda *given: well.append(_report(*given)), args=given) for given in enumerate(nodes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0 if all(well) else 1


# --- in the test --------------------------------------------------------------------------------------------------


async def start(job: Torchruns, *nodes: AgentNode, environ: Mapping[str, str] | None = None) -> Node:
    """Start a process with these nodes, in the job unless they name another."""
    given = [{**asdict(node), "endpoint": job.etcd.endpoint, "job_id": node.job_id or job.job_id} for node in nodes]
    return await job.fork(__name__, *map(json.dumps, given), environ=environ)


def ends(process: Node) -> dict[int, dict[str, Any]]:
    """How its nodes ended, by their number, in the order of their ends."""
    texts = [line.removeprefix("ended ") for line in process.shown if line.startswith("ended {")]
    return {ended["node"]: ended for ended in map(json.loads, texts)}


def environments(process: Node) -> list[dict[str, str]]:
    """The environments of its workers."""
    texts = [line.removeprefix("environment ") for line in process.shown if line.startswith("environment {")]
    return [json.loads(text) for text in texts]


def program(job: Torchruns, text: str) -> list[str]:
    """Put a script that imports torch into the job's folder; the arguments of python that run it."""
    path = Path(tempfile.mkdtemp(dir=job.folder)) / "worker.py"
    path.write_text(text)
    return [str(path)]


def light(job: Torchruns, text: str) -> list[str]:
    """The same for a script that needs nothing but python."""
    return ["-S", *program(job, text)]


def waiting(job: Torchruns) -> list[str]:
    """The arguments of python for the worker of `torchrun_harness`, which ends when the test says so."""
    return ["-S", str(job.folder / "worker.py"), str(job.end)]


if __name__ == "__main__":
    sys.exit(main())
