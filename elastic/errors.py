"""Every error this project raises on purpose, in one tree.

Each class says whose fault it is and what to do about it::

    ElasticError
    ├── ConfigError            the command line or the set-up of this machine: mend it (exit 2)
    │   └── ScriptMistake      the same in a script that calls us: said on stderr, ends the script with 2
    ├── MachineTaken           the cloud takes this machine back: another one can go on (exit 4)
    ├── MachineShort           no more open files, processes or memory here: end what else runs, try again (exit 4)
    ├── Refused                the job does not take this node: see the text (exit 3)
    ├── StoreError
    │   ├── StoreUnavailable   nobody answered: try again later (exit 4)
    │   ├── StoreDenied        the store answered no: user, password, certificate or right (exit 3)
    │   ├── OutcomeUnknown     a write was sent, its answer was lost: read it back before repeating
    │   ├── TooLarge           the store holds more than a reader takes: delete what the text names
    │   ├── Compacted          the history asked for is gone: list again
    │   └── WatchLost          the watch ended without a word of ours: list and watch again
    ├── DocumentError          a document in the store does not fit its schema: ignored and named
    ├── WorkersMissing         other workers did not come to the start: look at their logs
    ├── NurseryLost            the process that guards the workers is gone, and so are they
    ├── CheckpointError
    │   ├── CheckpointFenced   another generation owns the folder: this worker is of an old world
    │   ├── RestoreRefused     nothing can be restored: said on stderr, ends the script with 1
    │   ├── RestoreUnrecoverable  why it was refused, if each further start would find the same: the job fails at once
    │   ├── CheckpointDamaged  a file is missing or its checksum is wrong: an older one is taken
    │   ├── TensorsMissing     no rank holds a part of the state that is wanted: another step or tier is taken
    │   └── TensorsDiffer      the state that is held is not of the shape or type of this model: mend the script
    ├── NotFinite              a tensor has nan or inf: nothing is saved; go back to an older step
    ├── RunFailed              a run of elastic.testing did not go as its schedule says: see the output in it
    │   └── RunHung            the same because time ran out: see the stacks in it
    └── ParameterServerError
        ├── MessageError       a message does not fit its schema: it is refused and changes nothing
        ├── ModelMismatch      this worker's model is not the one that the servers hold: mend the script
        ├── SecretMismatch     this worker and the server have different secrets: neither takes anything of the other
        ├── SessionReplaced    a newer worker with the same number has come: this one must end
        └── ServerLost         a server did not answer for too long: start it again
"""

from __future__ import annotations


class ElasticError(Exception):
    """The root of the tree. `exit_code` is what the launcher returns when nothing catches it."""

    exit_code = 1


class ConfigError(ElasticError):
    """The command line or the local set-up is wrong; the text says what to change."""

    exit_code = 2


class ScriptMistake(ConfigError, SystemExit):
    """A call of ours in a training script is wrong. Whoever raises it has written the text to stderr.

    It is a `ConfigError` for whoever catches one. Uncaught it ends python with code 2 and without a stack trace.
    """

    def __init__(self, text: str) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = self.exit_code


class MachineTaken(ElasticError):
    """The cloud takes this machine back, and this node had not joined yet."""

    exit_code = 4


class MachineShort(ElasticError):
    """This machine gave no more open files, processes or memory; the limits that can be looked at were high enough."""

    exit_code = 4


class Refused(ElasticError):
    """The job does not accept this node; the text has both values that disagree."""

    exit_code = 3


class StoreError(ElasticError):
    """Anything that goes wrong between us and the store."""

    exit_code = 4


class StoreUnavailable(StoreError):
    """No endpoint answered in time, or the one that answered has no leader."""


class StoreDenied(StoreError):
    """The store answered that we may not; asking again does not help."""

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
    """Other workers did not come to `elastic.init` in time. The text names them."""


class NurseryLost(ElasticError):
    """The nursery died. Its workers died with it (parent-death signal)."""

    exit_code = 4


class CheckpointError(ElasticError):
    """Anything that goes wrong with a checkpoint folder.

    `transient` says that a disk or a network is behind it, which may do better at the next try.
    """

    def __init__(self, text: str, *, transient: bool = False) -> None:
        """Remember the text, and whether the next try may do better."""
        super().__init__(text)
        self.transient = transient


class CheckpointFenced(CheckpointError):
    """The folder belongs to another generation; this worker may not write there."""


class RestoreRefused(CheckpointError, SystemExit):
    """`State.restore` cannot go on from any checkpoint. Whoever raises it has written the text to stderr.

    Uncaught it ends python with code 1 and without a stack trace, which would only show our own code.
    """

    def __init__(self, text: str) -> None:
        """Remember the text, and the code for python's own exit."""
        super().__init__(text)
        self.code = self.exit_code


class RestoreUnrecoverable(CheckpointError):
    """What a restore needs is not there, or not what it must be; a person has to mend it. Every rank raises it."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint is incomplete or does not match its checksum."""


class TensorsMissing(CheckpointError):
    """Nobody holds a part of a tensor that a rank needs. The text names both; every rank raises the same."""


class TensorsDiffer(CheckpointError):
    """Ranks do not agree on the shape or type of a tensor. The text names it; every rank raises the same."""


class NotFinite(ElasticError):
    """A tensor has nan or inf. The text names it, the step and the rank, and the checkpoint that is kept."""


class RunFailed(ElasticError):
    """A run of `elastic.testing` did not go as its schedule says. The text names the replica and has its output."""


class RunHung(RunFailed):
    """A run of `elastic.testing` took too long. The text has the stacks of every replica that was still there."""


class ParameterServerError(ElasticError):
    """Anything that goes wrong between a worker and the parameter servers."""


class MessageError(ParameterServerError):
    """A message of the network is not what its schema allows. The text says what is wrong with it."""


class ModelMismatch(ParameterServerError):
    """A worker registers other parameters, or another way to train them, than the servers have."""


class SecretMismatch(ParameterServerError):
    """A worker and a parameter server have different secrets. Give every process the same ELASTIC_PS_SECRET."""


class SessionReplaced(ParameterServerError):
    """Another process has come with this worker's number, and the servers listen to that one."""


class ServerLost(ParameterServerError):
    """A parameter server was away for longer than the worker's patience. The text names it."""
