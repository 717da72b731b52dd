"""What each process of a node is started with: command, environment, log, and whether it is shown on the console."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from elastic.core.agent.actions import StartWorkers
from elastic.core.model import Generation
from elastic.core.ps.model import ClusterSpec, Role, Task
from elastic.core.text import log_name
from launcher.config.config import Config, worker_argv
from launcher.config.ps_layout import static_hosts
from launcher.logs import file_names
from launcher.net import addresses
from launcher.net.endpoints import join_host_port
from launcher.workers.environment import CollectiveContext, JobContext, LaunchContext, worker_environment
from launcher.workers.ps_environment import TaskContext, ps_environment
from launcher.workers.spec import WorkerSpec


class SpecBuilder:
    """Builds the process specs of one node. `folder` is its private directory, `roster_file` has all endpoints."""

    def __init__(self, config: Config, node: str, host: str, folder: Path, roster_file: Path) -> None:
        """Look up the interface that has the address of `host`, unless the user named one."""
        self._config = config
        self._node = node
        self._host = host
        self._private = folder
        self._roster_file = roster_file
        self._interface = config.nic or addresses.interface_among(host, static_hosts(config))
        self._known = addresses.known_by(self._interface)
        self._cwd = os.getcwd()

    def make(self, action: StartWorkers, learned: JobContext) -> dict[int, WorkerSpec]:
        """Return the specs of a generation on this node, by local rank: its workers, or its tasks with servers."""
        generation = action.generation
        with suppress(OSError):  # It was deleted. One of that name may exist again; if not, the worker reports it.
            self._cwd = os.getcwd()
        if not self._config.nic:  # A NIC that was removed and inserted again may have another name.
            self._interface = addresses.interface_now(self._interface, self._known)
        if isinstance(generation, ClusterSpec):
            tasks = generation.members[action.m_id].tasks
            return {at: self._task(action, generation, learned, at) for at in range(len(tasks))}
        context = self._launch_context(action, learned, os.environ, action.go.master, action.go.budget.charged)
        return {local: self._worker(action, context, local) for local in range(generation.slots)}

    def _worker(self, action: StartWorkers, context: LaunchContext, local: int) -> WorkerSpec:
        generation, config = action.generation, self._config
        rank = action.m_id * generation.slots + local
        process = CollectiveContext(
            launch=context,
            m_id=action.m_id,
            local_rank=local,
            error_file=str(self._private / f"error.{generation.g}.{rank}.json"),
            progress_file=str(self._private / f"progress.{generation.g}.{rank}"),
        )
        return WorkerSpec(
            rank=rank,
            local_rank=local,
            argv=worker_argv(config),
            env=worker_environment(process),
            cwd=self._cwd,
            log=Path(config.log_dir) / log_name(Role.WORKER, rank),
            shown=self._shown(rank, local),
            header=file_names.header_line(
                job_id=config.job_id,
                g=generation.g,
                rank=rank,
                local_rank=local,
                host=self._host,
                at=datetime.now(UTC),
            ),
            shared=self._several(generation),
        )

    def _task(self, action: StartWorkers, generation: ClusterSpec, learned: JobContext, at: int) -> WorkerSpec:
        """Return one process of a parameter-server job; `at` is the index of its task among those of the node."""
        config = self._config
        place = generation.members[action.m_id]
        task = place.tasks[at]
        name = log_name(task.role, task.index)
        master = self._meeting(generation, action.go.master)
        process = TaskContext(
            launch=self._launch_context(action, learned, self._base(), master, generation.budget.charged),
            place=place,
            task_index=at,
            roster_file=str(self._roster_file),
            error_file=str(self._private / f"error.{generation.g}.{name}.json"),
            progress_file=str(self._private / f"progress.{generation.g}.{name}"),
        )
        first = next((number for number, task in enumerate(place.tasks) if task.role is not Role.SERVER), -1)
        return WorkerSpec(
            rank=task.index,
            local_rank=at,
            argv=worker_argv(config),
            env=ps_environment(process),
            cwd=self._cwd,
            log=Path(config.log_dir) / name,
            shown={"all": True, "rank0": task == Task(Role.WORKER, 0), "local0": at == first}.get(
                config.console, False
            ),
            header=file_names.header_line(
                job_id=config.job_id,
                g=generation.g,
                rank=task.index,
                local_rank=at,
                host=self._host,
                at=datetime.now(UTC),
                role=task.role,
            ),
            shared=config.console == "all",
            role=task.role,
        )

    def _launch_context(
        self, action: StartWorkers, learned: JobContext, base: Mapping[str, str], master: str, restarts: int
    ) -> LaunchContext:
        """Return what every process of this node has in common."""
        return LaunchContext(
            base=base,
            config=self._config,
            generation=action.generation,
            master=master,
            restarts=restarts,
            restarts_max=action.restarts_max,
            node_id=self._node,
            incarnation=action.incarnation,
            endpoints_file=str(self._private / f"endpoints.{action.generation.g}.log"),
            interface=self._interface,
            learned=learned,
        )

    def _base(self) -> dict[str, str]:
        """Return the agent's environment, with the GPUs that were named."""
        gpus = self._config.shown_gpus
        shown = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {}
        return {**os.environ, **shown}

    def _meeting(self, generation: ClusterSpec, master: str) -> str:
        """Return where the workers of a parameter-server job rendezvous: on the node that has server 0 now."""
        for place in generation.members:
            if Task(Role.SERVER, 0) in place.tasks and place.masters:
                return join_host_port(place.host, place.masters[generation.g % len(place.masters)])
        return master

    def _shown(self, rank: int, local: int) -> bool:
        return {"all": True, "rank0": rank == 0, "local0": local == 0}.get(self._config.console, False)

    def _several(self, generation: Generation) -> bool:
        """Return whether several workers are shown on this console, which the agents of one machine may share."""
        here = sum(place.host == self._host for place in generation.members)
        return {"all": here * generation.slots, "local0": here}.get(self._config.console, 1) > 1
