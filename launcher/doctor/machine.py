"""What can be seen of this machine and its environment variables. Changes nothing: no folder, no port."""

from __future__ import annotations

import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from elastic._text import size_text
from elastic.errors import ConfigError, StoreUnavailable
from launcher import __version__
from launcher.config.config import Config
from launcher.config.devices import visible_gpus
from launcher.net import addresses, ports
from launcher.net.addresses import bridge_hint, in_container
from launcher.net.traffic_variables import misnamed, network_line, proxy_warning
from launcher.system import folder_checks
from launcher.system.checks import Check, fail, ok, warn
from launcher.system.private_env import inheritable_env

PYTHON_MIN = (3, 11)
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_MIN = 64 << 20
"""Docker's default, in which the batches of a few DataLoader workers do not fit."""
PORTS_NEEDED = 5
"""What a node with one worker holds: three where workers may meet, one for the agent, and one for the worker."""
NAMED_MAX = 5


def machine_checks(asked: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check by check, so that what is quick is shown before what is slow."""
    yield python_check(sys.version_info[:2], platform.python_version())
    gpus = visible_gpus(environ)
    yield ok("cards", f"{len(gpus)} to use: {', '.join(gpus)}" if gpus else "none to use; workers run on the CPU")
    yield from torch_checks(environ, len(gpus))
    yield from network_checks(asked, environ)
    yield proxy_check(environ)
    yield from variable_checks(environ, tuple(psutil.net_if_addrs()))
    yield port_check(asked.port_range)
    yield folder_checks.folder_check(folder_checks.LOG, Path(asked.log_dir))
    yield folder_checks.folder_check(folder_checks.CHECKPOINTS, Path(asked.checkpoint_dir))
    yield shared_memory_check(SHARED_MEMORY)


def python_check(found: tuple[int, ...], text: str) -> Check:
    """Python, and our own version."""
    least = ".".join(map(str, PYTHON_MIN))
    if tuple(found) < PYTHON_MIN:
        return fail("python", f"{text} is too old", f"use Python {least} or newer")
    return ok("python", f"{text}, elastic-launch {__version__}")


def network_checks(asked: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """The address that this node would tell the others, and whether it is a container's own."""
    inside = in_container()
    try:
        host = addresses.advertised(asked.host, environ, asked.servers, asked.nic)
    except (ConfigError, StoreUnavailable) as error:
        yield fail("address", str(error))
        return
    if not addresses.resolves(host):
        yield warn("address", f"the name {host} is not known here", "put it into DNS or /etc/hosts, or give an address")
    elif asked.servers or asked.host or asked.nic:
        yield ok("address", network_line(host, addresses.interface(host), asked.nic, environ))
    else:
        others = ", ".join(addresses.candidates()) or "none"
        yield ok("address", f"without --elastic_server a job stays on this machine ({host}); others: {others}")
    if hint := bridge_hint(host, asked.servers, inside=inside):
        yield warn("container", hint)
    else:
        yield ok("container", "this is one" if inside else "this is none")


def proxy_check(environ: Mapping[str, str]) -> Check:
    """Proxies that workers would use."""
    warning = proxy_warning(environ)
    return warn("proxies", warning) if warning else ok("proxies", "none")


def port_check(port_range: tuple[int, int] | None) -> Check:
    """Whether there are free ports, in the range if one is given."""
    if port_range is None:
        try:
            ports.hold("", PORTS_NEEDED).close()
        except ConfigError as error:
            return fail("ports", str(error))
        return ok("ports", "free ones are there; a firewall must leave all open between the nodes")
    low, high = port_range
    taken = [port for port in range(low, high + 1) if not _free(port)]
    free = high - low + 1 - len(taken)
    text = f"{free} of {high - low + 1} of {low}:{high} are free"
    if free < PORTS_NEEDED:
        return fail(
            "ports", text, f"a node needs {PORTS_NEEDED} or more (4 and one for each worker); widen --port_range"
        )
    if taken:
        named = ", ".join(map(str, taken[:NAMED_MAX])) + (" …" if len(taken) > NAMED_MAX else "")
        return warn("ports", f"{text}; taken: {named}", "ss -tlnp shows by whom")
    return ok("ports", text)


def _free(port: int) -> bool:
    try:
        ports.hold("", 1, within=(port, port)).close()
    except ConfigError:
        return False
    return True


def shared_memory_check(folder: Path, usage: folder_checks.Usage = shutil.disk_usage) -> Check:
    """Whether DataLoader workers and NCCL have room for what they share."""
    total = free = 0
    with suppress(OSError):
        total, _, free = usage(folder)
    if free <= SHARED_MEMORY_MIN:
        text = f"{folder} has {free >> 20} MB free of {total >> 20} MB" if total else f"there is no {folder}"
        return warn(
            "shared memory", text, "DataLoader workers and NCCL need more; docker run --shm-size 8g, or --ipc host"
        )
    return ok("shared memory", f"{size_text(free)} free of {size_text(total)}")


DEAD: Mapping[str, str] = {
    "FLAGS_sync_nccl_allreduce": "torch orders its collectives by itself; unset it",
    "FLAGS_fuse_parameter_memory_size": "DistributedDataParallel(bucket_cap_mb=...) does this in torch; unset it",
    "FLAGS_fuse_parameter_groups_size": "DistributedDataParallel(bucket_cap_mb=...) does this in torch; unset it",
    "NCCL_ASYNC_ERROR_HANDLING": "its name in torch is TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "its name in torch is TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "its name in torch is TORCH_NCCL_DESYNC_DEBUG",
}
"""Variables without an effect, and what to do instead. The first three are Paddle's; since its version 2.0 they are
options of its strategy and not read any more."""


def variable_checks(environ: Mapping[str, str], interfaces: Sequence[str]) -> list[Check]:
    """Every variable that is set in vain; `interfaces` are the network interfaces of this machine."""
    checks = [
        warn("variables", f"{name} is set and has no effect", hint) for name, hint in DEAD.items() if name in environ
    ]
    for variable, wanted in misnamed(environ, interfaces).items():
        hint = f"use one of {', '.join(interfaces)}, or unset it"
        checks.append(fail("variables", f"{variable} is {wanted}, and no interface here fits", hint))
    return checks or [ok("variables", "none that is set in vain")]


# Whether torch can be imported, asked of a child: it costs seconds, and what it loads may be broken.

TORCH_LIMIT_S = 120.0
"""A cold disk in a network takes long."""
OUTPUT_MARK = "elastic-doctor "
"""What stands before the child's one line; torch may print others."""
ASK = f"""
import json
import torch
import torch.distributed as d
there = d.is_available()
nccl = there and d.is_nccl_available()
print({OUTPUT_MARK!r} + json.dumps(dict(
    torch=torch.__version__,
    cuda=torch.version.cuda or "",
    cards=torch.cuda.device_count() if torch.cuda.is_available() else 0,
    gloo=there and d.is_gloo_available(),
    nccl=".".join(map(str, torch.cuda.nccl.version())) if nccl else "",
)))
"""
HINTS: tuple[tuple[str, str], ...] = (
    (r"No module named 'torch'", "pip install torch, in the environment that runs elastic-launch"),
    (
        r"lib(ssl|crypto)\.so",
        "install OpenSSL's libraries (Debian: apt-get install libssl3; RPM: openssl-libs), or put their folder into "
        "LD_LIBRARY_PATH",
    ),
    (r"libcuda\.so", "install the NVIDIA driver; a container needs --gpus all"),
    (
        r"lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|nvToolsExt|"
        r"cupti|cufile|nvshmem)[\w.]*\.so",
        "install torch anew with pip, which brings the CUDA libraries, or put their folder into LD_LIBRARY_PATH",
    ),
    (r"GLIBCXX_|CXXABI_", "install a newer libstdc++ (Debian: libstdc++6; conda: libstdcxx-ng)"),
    (r"GLIBC_", "this torch is for a newer system; use a newer image"),
    (r"libgomp\.so", "install libgomp (Debian: apt-get install libgomp1)"),
    (
        r"cannot open shared object file",
        "install the package that has this library, or put its folder into LD_LIBRARY_PATH",
    ),
    (r"undefined symbol", "libraries of two versions are mixed; take LD_LIBRARY_PATH away, or install torch anew"),
)
"""What an error says, and what to do; the first that fits counts."""


class TorchReport(msgspec.Struct, frozen=True):
    """What the child found."""

    torch: str
    cuda: str
    gpus: int = msgspec.field(name="cards")
    gloo: bool
    nccl: str


def torch_checks(environ: Mapping[str, str], gpus: int) -> list[Check]:
    """Import torch in a child; `gpus` are those that this machine shows."""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", ASK],
            env=inheritable_env(environ, ()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TORCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            fail("torch", f"import torch takes more than {TORCH_LIMIT_S:.0f} s", "look at the disk that it lies on")
        ]
    report_lines = [line for line in ran.stdout.decode(errors="replace").splitlines() if line.startswith(OUTPUT_MARK)]
    if ran.returncode or not report_lines:
        return [import_failure(ran.returncode, ran.stderr.decode(errors="replace"))]
    return torch_check(msgspec.json.decode(report_lines[-1].removeprefix(OUTPUT_MARK), type=TorchReport), gpus)


def import_failure(code: int, complaint: str) -> Check:
    """The error of a failing import, with the mend that fits it."""
    if code < 0:
        return fail("torch", f"import torch dies of {signal.Signals(-code).name}", "install torch anew")
    errors = [line.strip() for line in complaint.splitlines() if line and not line.startswith((" ", "Traceback"))]
    error = errors[-1] if errors else f"exit code {code}"
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, error)), "python -c 'import torch' shows it all")
    return fail("torch", f"import torch fails: {error}", hint)


def torch_check(report: TorchReport, gpus: int) -> list[Check]:
    """What torch says of itself, held against the cards that there are."""
    checks = [ok("torch", f"{report.torch}, {f'CUDA {report.cuda}' if report.cuda else 'without CUDA'}")]
    if gpus and not report.gpus:
        hint = "install a torch that is built for CUDA" if not report.cuda else "its CUDA may be newer than the driver"
        checks.append(warn("torch's cards", f"nvidia-smi lists {gpus}, torch can use none", hint))
    if not report.gloo:
        checks.append(fail("backends", "this torch has no gloo", "install torch from its own packages"))
    elif not report.nccl:
        level = warn if gpus else ok
        checks.append(level("backends", "gloo" + ("; no NCCL, so that cards cannot talk to each other" * bool(gpus))))
    else:
        checks.append(ok("backends", f"gloo, NCCL {report.nccl}"))
    return checks
