"""The exceptions of elastic-launch and the `elastic` library, in one tree.

Each class says what is wrong and what to do about it::

    ElasticError
    ├── ConfigError            the command line or the environment is wrong: fix it (exit code 2)
    │   └── ScriptMistake      the script calls the library wrongly: fix the script (exit code 2, no stack trace)
    ├── MachineTaken           the cloud preempts this machine: use another node (exit code 4)
    ├── MachineShort           no open files, processes or memory left: stop other programs, retry (exit code 4)
    ├── Refused                the job rejects this node: see the message (exit code 3)
    ├── StoreError
    │   ├── StoreUnavailable   no etcd server replied: retry later (exit code 4)
    │   ├── StoreDenied        etcd denied access: check user, password, certificate and role (exit code 3)
    │   ├── OutcomeUnknown     a write was sent, but the reply was lost: read before you repeat it
    │   ├── TooLarge           a response of etcd exceeds the limit: delete the keys in the message
    │   ├── Compacted          etcd has compacted the requested history: list again
    │   └── WatchLost          the watch ended: list and watch again
    ├── DocumentError          a record in etcd does not match its schema: it is ignored and named
    ├── WorkersMissing         other workers did not join: see their logs
    ├── NurseryLost            the fork server exited, and its workers with it (exit code 4)
    ├── CheckpointError
    │   ├── CheckpointFenced   another generation owns the directory: this worker must exit
    │   ├── RestoreRefused     nothing can be restored: see the message (exit code 1, no stack trace)
    │   ├── RestoreUnrecoverable  a restart would not help: the job fails at once
    │   ├── CheckpointDamaged  a file is missing or its checksum is wrong: an older checkpoint is used
    │   ├── TensorsMissing     no rank has a required part of a tensor: another step or tier is used
    │   └── TensorsDiffer      the saved state has another shape or dtype than the model: fix the script
    ├── NotFinite              a tensor is NaN or Inf: nothing is saved; roll back to an older step
    ├── RunFailed              a run of elastic.testing did not go as scheduled: see the output in the message
    │   └── RunHung            the run reached its timeout: see the stack traces in the message
    └── ParameterServerError
        ├── MessageError       a message does not match its schema: it is rejected and changes nothing
        ├── ModelMismatch      this worker's model differs from that of the servers: fix the script
        ├── SecretMismatch     the worker and the server have different secrets: use the same one
        ├── SessionReplaced    a newer worker with the same index has connected: this one must exit
        └── ServerLost         a server did not reply within the timeout: restart it
"""

from __future__ import annotations


class ElasticError(Exception):
    """The base class. `exit_code` is the exit code of the launcher if nothing catches the error."""

    exit_code = 1


class ConfigError(ElasticError):
    """The command line, the environment, or a call of the library is wrong. The message says what to change."""

    exit_code = 2


class ScriptMistake(ConfigError, SystemExit):
    """A training script calls the library wrongly. The message has already been printed to stderr.

    It can be caught as a `ConfigError`. If nothing catches it, Python exits with code 2 and without a stack trace.
    """

    def __init__(self, text: str) -> None:
        """`text` is the message; `code` is the exit code for Python."""
        super().__init__(text)
        self.code = self.exit_code


class MachineTaken(ElasticError):
    """The cloud preempts this machine before this node has joined the job."""

    exit_code = 4


class MachineShort(ElasticError):
    """This machine has no open files, processes or memory left, although the visible limits were high enough."""

    exit_code = 4


class Refused(ElasticError):
    """The job rejects this node. The message has both values that disagree."""

    exit_code = 3


class StoreError(ElasticError):
    """An error between this process and etcd."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """No etcd server replied in time, or the server that replied has no leader."""


class StoreDenied(StoreError):
    """etcd denied the request; a retry does not help."""

    exit_code = 3


class OutcomeUnknown(StoreError):
    """A write may or may not have happened. Read the key before you repeat the write."""


class TooLarge(StoreError):
    """A response of etcd exceeds the limit of the reader, which has read none of it."""


class Compacted(StoreError):
    """The requested revision is no longer in the history of etcd.

    `revision` is the oldest revision that can still be watched (0 if unknown).
    """

    def __init__(self, revision: int) -> None:
        """`revision` is the oldest revision that can be watched."""
        super().__init__(f"etcd has compacted the history before revision {revision}")
        self.revision = revision


class WatchLost(StoreError):
    """The stream of a watch ended, the server cancelled it, or its endpoint failed."""


class DocumentError(ElasticError):
    """A record in etcd does not match its schema. The message names the key and the problem."""


class WorkersMissing(ElasticError):
    """Other workers did not call `elastic.init` in time. The message names their ranks."""


class NurseryLost(ElasticError):
    """The fork server of this node exited, and its workers with it (parent-death signal)."""

    exit_code = 4


class CheckpointError(ElasticError):
    """An error with a checkpoint or its directory.

    Attributes:
        transient: A disk or a network causes the error, so that a retry may succeed.
    """

    def __init__(self, text: str, *, transient: bool = False) -> None:
        """`text` is the message."""
        super().__init__(text)
        self.transient = transient


class CheckpointFenced(CheckpointError):
    """The directory belongs to another generation; this worker may not write there."""


class RestoreRefused(CheckpointError, SystemExit):
    """`State.restore` cannot restore any checkpoint. The message has already been printed to stderr.

    If nothing catches it, Python exits with code 1 and without a stack trace, which would only show library code.
    """

    def __init__(self, text: str) -> None:
        """`text` is the message; `code` is the exit code for Python."""
        super().__init__(text)
        self.code = self.exit_code


class RestoreUnrecoverable(CheckpointError):
    """A restore fails, and a restart would not help: the user has to fix it. Every rank raises it."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint is incomplete or does not match its checksum."""


class TensorsMissing(CheckpointError):
    """No rank has a part of a tensor that a rank needs. The message names both; every rank raises the same error."""


class TensorsDiffer(CheckpointError):
    """Ranks disagree on the shape or dtype of a tensor. The message names it; every rank raises the same error."""


class NotFinite(ElasticError):
    """A tensor is NaN or Inf. The message names it, the step and the rank, and the newest checkpoint."""


class RunFailed(ElasticError):
    """A run of `elastic.testing` did not go as scheduled. The message names the replica and has its output."""


class RunHung(RunFailed):
    """A run of `elastic.testing` reached its timeout. The message has the stack traces of all running replicas."""


class ParameterServerError(ElasticError):
    """An error between a worker and the parameter servers."""


class MessageError(ParameterServerError):
    """A message from the network does not match its schema. The text says what is wrong with it."""


class ModelMismatch(ParameterServerError):
    """A worker registers other parameters, or another optimizer, than the servers have."""


class SecretMismatch(ParameterServerError):
    """A worker and a parameter server have different secrets. Set the same ELASTIC_PS_SECRET for every process."""


class SessionReplaced(ParameterServerError):
    """Another process has connected with the index of this worker, and the servers now serve that one."""


class ServerLost(ParameterServerError):
    """A parameter server did not reply within the timeout of the worker. The message names the server."""
