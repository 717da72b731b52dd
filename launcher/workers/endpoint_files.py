"""The endpoints of all processes as files: for users, for workers, and for processes of a parameter-server job."""

from __future__ import annotations

from pathlib import Path

from elastic._disk.replace import replace_file
from elastic.core.model import Generation
from elastic.core.ps.model import ClusterSpec, Role
from launcher.logs import endpoint_list_writer
from launcher.logs.logger import AgentLog
from launcher.logs.writer_client import LogSink
from launcher.logs.writer_protocol import WriteEndpoints, path_bytes
from launcher.net.endpoints import join_host_port
from launcher.workers.ps_environment import cluster_spec_document


class EndpointFiles:
    """Writes the endpoint files for each generation, and the cluster spec file for each of its revisions.

    Workers read a separate list in the private directory, so that their start does not wait for the disk of the logs.
    """

    def __init__(self, log_dir: Path, private: Path, sink: LogSink, agent_log: AgentLog) -> None:
        self.logs = path_bytes(log_dir)
        self.roster_file = private / "roster.json"
        self._private = private
        self._sink = sink
        self._agent_log = agent_log

    def write(self, generation: Generation) -> None:
        """Write the endpoints of a generation. A file that cannot be written is reported in a warning."""
        endpoints, servers = _endpoints(generation)
        self._sink.put(WriteEndpoints(self.logs, generation.g, tuple(endpoints), tuple(servers)), "endpoints.log")
        try:
            endpoint_list_writer.write_lists(self._private, generation.g, endpoints, servers)
        except OSError as error:
            self._agent_log.warning(
                f"cannot write {self._private} ({error.strerror}); workers have no list of endpoints"
            )
        if isinstance(generation, ClusterSpec):
            try:
                replace_file(self.roster_file, cluster_spec_document(generation))
            except OSError as error:
                self._agent_log.warning(f"cannot write {self.roster_file} ({error.strerror}); it may be out of date")


def _endpoints(generation: Generation) -> tuple[list[str], list[str]]:
    """Return the endpoints of the workers in the order of their ranks, and those of the servers."""
    if isinstance(generation, ClusterSpec):
        found = [
            [join_host_port(one.host, one.port) for one in generation.task_assignments(role)]
            for role in (Role.WORKER, Role.HETER, Role.SERVER)
        ]
        return found[0] + found[1], found[2]
    return [join_host_port(place.host, port) for place in generation.members for port in place.ports], []
