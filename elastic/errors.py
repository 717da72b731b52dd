"""Every error this project raises on purpose, in one tree.

Each class says whose fault it is and what to do about it::

    ElasticError
    ├── ConfigError            the command line or the set-up of this machine is wrong: fix it (exit 2)
    │   └── ScriptMistake      the same in a script that calls us: printed on stderr, ends the script with 2
    ├── MachineTaken           the cloud takes this machine back: another node can continue (exit 4)
    ├── MachineShort           no open files, processes or memory left: stop other programs, try again (exit 4)
    ├── Refused                the job does not accept this node: see the text (exit 3)
    ├── StoreError
    │   ├── StoreUnavailable   no server answered: try again later (exit 4)
    │   ├── StoreDenied        the store refused: check user, password, certificate and role (exit 3)
    │   ├── OutcomeUnknown     a write was sent, its answer was lost: read it back before repeating
    │   ├── TooLarge           the store holds more than a reader takes: delete what the text names
    │   ├── Compacted          the history asked for is gone: list again
    │   └── WatchLost          the watch ended: list and watch again
    ├── DocumentError          a document in the store does not fit its schema: ignored and named
    ├── WorkersMissing         other workers did not come to the start: look at their logs
    ├── NurseryLost            the process that guards the workers is gone, and so are they
    ├── CheckpointError
    │   ├── CheckpointFenced   another generation owns the folder: this worker is of an old world
    │   ├── RestoreRefused     nothing can be restored: printed on stderr, ends the script with 1
    │   ├── RestoreUnrecoverable  a restart would not help: the job fails at once
    │   ├── CheckpointDamaged  a file is missing or its checksum is wrong: an older one is taken
    │   ├── TensorsMissing     no rank holds a part of the state that is needed: another step or tier is taken
    │   └── TensorsDiffer      the stored state has another shape or type than this model: fix the script
    ├── NotFinite              a tensor has nan or inf: nothing is saved; go back to an older step
    ├── RunFailed              a run of elastic.testing did not go as its schedule says: see the output in it
    │   └── RunHung            the same because time ran out: see the stacks in it
    └── ParameterServerError
        ├── MessageError       a message does not fit its schema: it is rejected and changes nothing
        ├── ModelMismatch      this worker's model differs from the one on the servers: fix the script
        ├── SecretMismatch     this worker and the server have different secrets: give them the same one
        ├── SessionReplaced    a newer worker with the same number has connected: this one must end
        └── ServerLost         a server did not answer for too long: start it again
"""

from __future__ import annotations


class ElasticError(Exception):
    """The root of the tree. `exit_code` is what the launcher returns when nothing catches it."""

    exit_code = 1


class ConfigError(ElasticError):
    """The command line, a call of ours, or the set-up of this machine is wrong; the text says what to change."""

    exit_code = 2


class ScriptMistake(ConfigError, SystemExit):
    """A call of ours in a training script is wrong. The text is on stderr already.

    It can be caught as a `ConfigError`. If nothing catches it, Python ends with exit code 2 and without a stack trace.
    """

    def __init__(self, text: str) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = self.exit_code


class MachineTaken(ElasticError):
    """The cloud takes this machine back before this node has joined the job."""

    exit_code = 4


class MachineShort(ElasticError):
    """This machine has no open files, processes or memory left; the limits that we can read were high enough."""

    exit_code = 4


class Refused(ElasticError):
    """The job does not accept this node; the text has both values that disagree."""

    exit_code = 3


class StoreError(ElasticError):
    """An error between this process and the store."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """No server answered in time, or the one that answered has no leader."""


class StoreDenied(StoreError):
    """The store refused the request; to ask again does not help."""

    exit_code = 3


class OutcomeUnknown(StoreError):
    """A write may or may not have happened. Read it back before repeating it."""


class TooLarge(StoreError):
    """An answer of the store is longer than a reader takes; nothing of it was read."""


class Compacted(StoreError):
    """The revision asked for is no longer in the store's history.

    `revision` is the oldest revision that can still be watched (0 if unknown).
    """

    def __init__(self, revision: int) -> None:
        """Remember the oldest watchable revision."""
        super().__init__(f"history before revision {revision} is gone")
        self.revision = revision


class WatchLost(StoreError):
    """The stream of a watch ended, was cancelled by the server, or lost its endpoint."""


class DocumentError(ElasticError):
    """A document does not fit its schema. The text names the key and what is wrong."""


class WorkersMissing(ElasticError):
    """Other workers did not reach `elastic.init` in time. The text names them."""


class NurseryLost(ElasticError):
    """The fork server of this node died. Its workers died with it (parent-death signal)."""

    exit_code = 4


class CheckpointError(ElasticError):
    """An error with a checkpoint folder. `transient`: a disk or a network is the cause, so a retry may succeed."""

    def __init__(self, text: str, *, transient: bool = False) -> None:
        """Remember the text, and whether the next try may do better."""
        super().__init__(text)
        self.transient = transient


class CheckpointFenced(CheckpointError):
    """The folder belongs to another generation; this worker may not write there."""


class RestoreRefused(CheckpointError, SystemExit):
    """`State.restore` cannot continue from any checkpoint. The text is on stderr already.

    If nothing catches it, Python ends with exit code 1 and without a stack trace, which would show only our own code.
    """

    def __init__(self, text: str) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = self.exit_code


class RestoreUnrecoverable(CheckpointError):
    """What a restore needs is missing or wrong, and a person has to fix it. Every rank raises it."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint is incomplete or does not match its checksum."""


class TensorsMissing(CheckpointError):
    """No rank holds a part of a tensor that a rank needs. The text names both; every rank raises the same error."""


class TensorsDiffer(CheckpointError):
    """Ranks do not agree on the shape or type of a tensor. The text names it; every rank raises the same error."""


class NotFinite(ElasticError):
    """A tensor has nan or inf. The text names it, the step and the rank, and the checkpoint that is kept."""


class RunFailed(ElasticError):
    """A run of `elastic.testing` did not go as its schedule says. The text names the replica and has its output."""


class RunHung(RunFailed):
    """A run of `elastic.testing` took too long. The text has the stacks of every replica that was still there."""


class ParameterServerError(ElasticError):
    """An error between a worker and the parameter servers."""


class MessageError(ParameterServerError):
    """A message from the network does not fit its schema. The text says what is wrong with it."""


class ModelMismatch(ParameterServerError):
    """A worker registers other parameters, or another way to train them, than the servers have."""


class SecretMismatch(ParameterServerError):
    """A worker and a parameter server have different secrets. Give every process the same ELASTIC_PS_SECRET."""


class SessionReplaced(ParameterServerError):
    """Another process has connected with this worker's number, and the servers now serve that one."""


class ServerLost(ParameterServerError):
    """A parameter server did not answer within the worker's time limit. The text names it."""
