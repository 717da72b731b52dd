"""The launchers that contend, the stores that they meet in, and their commands: nothing here is measured.

For torchrun, c10d's store runs in a process of its own, so that it survives the kill whichever node dies, and
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set in its favour where worlds change: torchrun 2.13 otherwise uses one store
for all worlds while rank 0 stays the same, a worker may read its peer's address of the world before, and a recovery
then takes several tries (76 s and more, instead of 48 s).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from elastic.store.embedded import EmbeddedEtcd
from tests.bench.nodes import ROOT
from tests.cluster.hosts import Cluster

TRAINING = Path(__file__).with_name("training.py")
"""DDP without our library: every contender can run it."""
STATE_TRAINING = Path(__file__).with_name("state_training.py")
"""With our library: for state that is restored, and for planned changes."""
HF_TRAINING = Path(__file__).with_name("hf_training.py")
LIGHTNING_TRAINING = Path(__file__).with_name("lightning_training.py")
ACCELERATE_TRAINING = Path(__file__).with_name("accelerate_training.py")
"""With the Trainer of Hugging Face and of Lightning: `make scripts` installs them."""
DIGITS = "elastic.examples.digits"
STEPS = 1_000_000
STEP_S = 0.01
"""The pause of each step. It is part of every figure, so it is short: a step of 50 ms would hide as much."""

TUNED, DEFAULTS, ELASTIC_ETCD = "torchrun, tuned", "torchrun, defaults", "torchrun, elastic-etcd"
PEER_ENVIRON = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TUNING = ("last_call_timeout=1", "keep_alive_interval=1", "keep_alive_max_attempt=2", "--monitor-interval=0.1")

C10D_STORE = (
    "import sys, time; from torch.distributed import TCPStore; "
    "store = TCPStore('127.0.0.1', int(sys.argv[1]), None, True, wait_for_workers=False); "
    "print('up', flush=True); time.sleep(1e6)"
)

Script = Callable[[Path], list[str]]
"""Takes a folder for logs; gives the words that follow the launcher's."""
Command = Callable[[str, str, Path], list[str]]
"""Takes the store's address, the job's name and a folder for logs."""


class Store(Protocol):
    """Starts what nodes meet in, on this machine or on the first host of a cluster; gives its address."""

    def __call__(self, cluster: Cluster | None = None, /) -> contextlib.AbstractContextManager[str]: ...


@dataclass(frozen=True)
class Contender:
    """A launcher with its settings; `store` starts what its nodes meet in."""

    name: str
    store: Store
    command: Command
    environ: Mapping[str, str] = field(default_factory=dict)
    learns: bool = False
    """Its nodes prepare what the script imports, and log it (`tests.bench.preparation`)."""

    def environment(self, folder: Path) -> dict[str, str]:
        """The variables of a job with this folder. Its user's cache is empty: no list of imports is there yet."""
        return {**self.environ, "XDG_CACHE_HOME": str(folder / "cache")}

    def shown(self) -> str:
        """The command as a person types it."""
        words = " ".join(self.command("STORE", "JOB", Path("LOGS")))
        for script in (TRAINING, STATE_TRAINING, HF_TRAINING, LIGHTNING_TRAINING, ACCELERATE_TRAINING):
            words = words.replace(str(script), script.name)
        environ = "".join(f"{name}={text} " for name, text in self.environ.items())
        return environ + words.replace(sys.executable, "python").replace(f"{ROOT}/", "")


@contextlib.contextmanager
def hosts() -> Iterator[Cluster]:
    """Make a cluster: hosts in network namespaces, the first of them with an etcd."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as scratch, asyncio.Runner() as runner:
        cluster = Cluster(Path(scratch))
        try:
            runner.run(cluster.start())
            yield cluster
        finally:
            runner.run(cluster.close())


@contextlib.contextmanager
def c10d_store(cluster: Cluster | None = None) -> Iterator[str]:
    """Run torch's rendezvous store in a process of its own."""
    assert cluster is None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", C10D_STORE, str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "up\n":
                raise RuntimeError("the c10d store did not start")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@contextlib.contextmanager
def etcd_store(cluster: Cluster | None = None) -> Iterator[str]:
    """Run a real etcd on this machine; a cluster has one."""
    if cluster is not None:
        yield cluster.server
        return
    etcd = EmbeddedEtcd()
    with asyncio.Runner() as runner:
        address = runner.run(etcd.start())
        try:
            yield address
        finally:
            runner.run(etcd.stop())


@contextlib.contextmanager
def no_store(_: Cluster | None = None) -> Iterator[str]:
    """What `torchrun --standalone` needs."""
    yield ""


def plain(logs: Path, step_s: float = STEP_S, busy: int = 0) -> list[str]:
    """The script that everybody runs, with its arguments; each worker can have processes beside it that are busy."""
    return [str(TRAINING), str(logs / "steps.log"), str(STEPS), str(step_s), *([str(busy)] if busy else [])]


def in_step(logs: Path) -> list[str]:
    """The same script, whose time passes within its steps."""
    return [str(TRAINING), str(logs / "steps.log"), str(STEPS), "0.0", "0", str(STEP_S)]


def with_state(logs: Path, size_mb: float, every: int, memory_every: int, step_s: float = STEP_S) -> list[str]:
    """The script that uses our library, with its arguments."""
    return [str(STATE_TRAINING), *map(str, (logs / "steps.log", size_mb, step_s, every, memory_every))]


def digits(logs: Path, step_s: float = STEP_S) -> list[str]:
    """Our example: our library, scikit-learn and DDP."""
    log, steps = str(logs / "steps.log"), str(STEPS)
    flags = ("--steps", steps, "--checkpoint_every", steps, "--step_time", str(step_s), "--step_log", log)
    return ["-m", DIGITS, *flags]


def hf_trainer(logs: Path, step_s: float = STEP_S, *, elastic: bool = False) -> list[str]:
    """The script with Hugging Face's Trainer, or with ours."""
    return [str(HF_TRAINING), *plain(logs, step_s)[1:], *(["elastic"] if elastic else [])]


def lightning(logs: Path, step_s: float = STEP_S, *, elastic: bool = False) -> list[str]:
    """The script with Lightning's Trainer, as it is or with our integration."""
    return [str(LIGHTNING_TRAINING), *plain(logs, step_s)[1:], *(["elastic"] if elastic else [])]


def accelerate(logs: Path, step_s: float = STEP_S, *, elastic: bool = False) -> list[str]:
    """The script with Accelerate's Accelerator, or with ours."""
    return [str(ACCELERATE_TRAINING), *plain(logs, step_s)[1:], *(["elastic"] if elastic else [])]


def ours(np: str, *flags: str, script: Script = plain, workers: int = 1) -> Command:
    """Build our command: one worker for each node or so many, everything else by default but for `flags`."""

    def command(store: str, job: str, logs: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "launcher", "--elastic-server", store, "--job-id", job, "--np", np),
            *("--nproc-per-node", str(workers), "--log-dir", str(logs / "log")),
            *("--checkpoint-dir", str(logs / "checkpoints"), *flags, *script(logs)),
        ]

    return command


def silence_timeout(seconds: float) -> tuple[str, ...]:
    """The flags for it; 0.0 is the lease alone."""
    return ("--silence-timeout", f"{seconds:g}")


def torchrun(nnodes: str, *settings: str, script: Script = plain) -> Command:
    """Build torchrun's command; `is_host=false` because the store is already there."""
    conf = ",".join(["is_host=false", *(text for text in settings if not text.startswith("--"))])
    flags = [text for text in settings if text.startswith("--")]

    def command(store: str, job: str, logs: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nnodes}", "--nproc-per-node=1"),
            *("--max-restarts=100", "--rdzv-backend=c10d", f"--rdzv-endpoint={store}", f"--rdzv-id={job}"),
            *(f"--rdzv-conf={conf}", *flags, *script(logs)),
        ]

    return command


def torchrun_plugin(nnodes: str) -> Command:
    """Build torchrun's command with our rendezvous, everything by default."""

    def command(store: str, job: str, logs: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nnodes}", "--nproc-per-node=1"),
            *("--max-restarts=100", "--rdzv-backend=elastic-etcd", f"--rdzv-endpoint={store}", f"--rdzv-id={job}"),
            *plain(logs),
        ]

    return command


def torchrun_standalone(store: str, job: str, logs: Path) -> list[str]:
    """torchrun's command for one node."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", *plain(logs)]


def tuned(nodes: int, script: Script = plain) -> Contender:
    """torchrun with shorter timeouts, for a job whose world changes."""
    return Contender(TUNED, c10d_store, torchrun(f"1:{nodes}", *TUNING, script=script), PEER_ENVIRON)


def defaults(nodes: int, script: Script = plain) -> Contender:
    """torchrun with its default timeouts, for a job whose world changes."""
    return Contender(DEFAULTS, c10d_store, torchrun(f"1:{nodes}", script=script), PEER_ENVIRON)


def peers(nodes: int) -> list[Contender]:
    """torchrun for a job of so many nodes whose world changes: with our rendezvous, and torch's own in two settings."""
    return [
        Contender(ELASTIC_ETCD, etcd_store, torchrun_plugin(f"1:{nodes}")),
        tuned(nodes),
        defaults(nodes),
    ]
