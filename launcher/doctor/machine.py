"""Checks of this host and its environment variables. They change nothing: they create no directory and keep no port."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from elastic._text import counted, size_text
from elastic.errors import ConfigError, StoreUnavailable
from launcher import __version__
from launcher.config.config import Config
from launcher.config.devices import visible_gpus
from launcher.doctor.packages import other_packages, packages_check
from launcher.doctor.torch_import import torch_checks
from launcher.net import addresses, ports
from launcher.net.addresses import bridge_hint, in_container
from launcher.net.traffic_variables import misnamed, network_line, proxy_warning
from launcher.system import folder_checks
from launcher.system.checks import Check, fail, note, ok, warn
from launcher.system.priority import RAISED_NICE, raise_priority
from launcher.workers.learned_cache import cache_folder, known_lists

PYTHON_MIN = (3, 11)
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_MIN = 64 << 20
"""Docker's default, which is too small for the batches of a few DataLoader workers."""
PORTS_NEEDED = 5
"""Ports of a node with one worker: three for the rendezvous of workers, one for the agent, one for the worker."""
NAMED_MAX = 5


def machine_checks(asked: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield check by check, so that the quick ones appear before the slow ones."""
    yield python_check(sys.version_info[:2], platform.python_version())
    yield packages_of_this_process()
    gpus = visible_gpus(environ)
    yield ok("GPUs", f"{len(gpus)} available: {', '.join(gpus)}" if gpus else "none; workers run on the CPU")
    yield from torch_checks(environ, len(gpus))
    yield from network_checks(asked, environ)
    yield proxy_check(environ)
    yield from variable_checks(environ, tuple(psutil.net_if_addrs()))
    yield port_check(asked.port_range)
    yield folder_checks.folder_check(folder_checks.LOG, Path(asked.log_dir))
    yield folder_checks.folder_check(folder_checks.CHECKPOINTS, Path(asked.checkpoint_dir))
    yield imports_check(cache_folder(environ))
    yield shared_memory_check(SHARED_MEMORY)
    yield priority_check(os.getpriority(os.PRIO_PROCESS, 0), raised=may_raise_priority())


def imports_check(folder: Path | None) -> Check:
    """Report which scripts have a learned list of imports, which speeds up their next start."""
    lists = [] if folder is None else known_lists(folder)
    details = []
    for known in lists:
        unfit = {module.name: module.why for module in known.unfit}
        names = ", ".join(module.name for module in known.imports.modules if module.name not in unfit) or "nothing"
        left_out = "".join(f"; not {name}: it {why}" for name, why in unfit.items())
        details.append(f"{known.imports.own[0].file}: preloads {names}{left_out}")
    if not lists:
        return ok("imports", "none are known yet; elastic-launch learns them while a script runs (--no-learn)")
    return ok("imports", f"known for {counted(len(lists), 'command')}, in {folder}", tuple(details[:NAMED_MAX]))


def python_check(found: tuple[int, ...], text: str) -> Check:
    """Check the version of Python, and report that of elastic-launch."""
    least = ".".join(map(str, PYTHON_MIN))
    if tuple(found) < PYTHON_MIN:
        return fail("python", f"{text} is too old", f"use Python {least} or newer")
    return ok("python", f"{text}, elastic-launch {__version__}")


def packages_of_this_process() -> Check:
    """Check whether this environment has other packages with the names of ours."""
    own = Path(__file__).parents[2].resolve()
    search_path = [Path(entry).resolve() for entry in sys.path]
    others = other_packages(importlib.metadata.distributions(), search_path, Path.cwd(), own)
    return packages_check(own, others, search_path)


def network_checks(asked: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the address that this node would advertise, and whether it belongs only to a container."""
    inside = in_container()
    try:
        host = addresses.advertised(asked.host, environ, asked.servers, asked.nic)
    except (ConfigError, StoreUnavailable) as error:
        yield fail("address", str(error))
        return
    if not addresses.resolve(host):
        yield warn(
            "address", f"this host cannot resolve the name {host}", "add it to DNS or /etc/hosts, or use an address"
        )
    elif asked.servers or asked.host or asked.nic:
        yield ok("address", network_line(host, addresses.interface(host), asked.nic, environ))
    else:
        others = ", ".join(addresses.candidates()) or "none"
        yield ok("address", f"without --elastic-server a job stays on this host ({host}); other addresses: {others}")
    if hint := bridge_hint(host, asked.servers, inside=inside):
        yield warn("container", hint)
    else:
        yield ok("container", "running in one" if inside else "not in one")


def proxy_check(environ: Mapping[str, str]) -> Check:
    """Check for proxies that workers would use."""
    warning = proxy_warning(environ)
    return warn("proxies", warning) if warning else ok("proxies", "none")


def port_check(port_range: tuple[int, int] | None) -> Check:
    """Check whether there are enough free ports, in the range if one is given."""
    if port_range is None:
        try:
            with ports.hold("", PORTS_NEEDED):
                return ok("ports", "free ports are available; a firewall must leave all ports open between the nodes")
        except ConfigError as error:
            return fail("ports", str(error))
    low, high = port_range
    taken = [port for port in range(low, high + 1) if not _free(port)]
    free = high - low + 1 - len(taken)
    text = f"{free} of {high - low + 1} of {low}:{high} are free"
    if free < PORTS_NEEDED:
        return fail(
            "ports", text, f"a node needs {PORTS_NEEDED} or more (4 and one for each worker); widen --port-range"
        )
    if taken:
        named = ", ".join(map(str, taken[:NAMED_MAX])) + (" …" if len(taken) > NAMED_MAX else "")
        return warn("ports", f"{text}; taken: {named}", "ss -tlnp lists the processes that hold them")
    return ok("ports", text)


def _free(port: int) -> bool:
    try:
        with ports.hold("", 1, within=(port, port)):
            return True
    except ConfigError:
        return False


def shared_memory_check(folder: Path, usage: folder_checks.Usage = shutil.disk_usage) -> Check:
    """Check whether shared memory is large enough for DataLoader workers and NCCL."""
    total = free = 0
    with suppress(OSError):
        total, _, free = usage(folder)
    if free <= SHARED_MEMORY_MIN:
        text = f"{folder} has {free >> 20} MB free of {total >> 20} MB" if total else f"{folder} does not exist"
        return warn(
            "shared memory", text, "DataLoader workers and NCCL need more; use docker run --shm-size 8g or --ipc host"
        )
    return ok("shared memory", f"{size_text(free)} free of {size_text(total)}")


def priority_check(nice: int, *, raised: bool) -> Check:
    """Check whether an agent that is started here can answer heartbeats while data loaders use every core."""
    if raised:
        return ok("priority", f"the agent runs at nice {RAISED_NICE}, workers at nice 0")
    if nice:
        return ok("priority", f"started at nice {nice}; the agent and its workers keep it")
    return note(
        "priority",
        "the agent may not raise its priority; if data loaders use every core, its heartbeats may be late",
        "root adds `USER - nice -10` to /etc/security/limits.conf and the user logs in again; LimitNICE=-10 in a "
        "systemd unit; CAP_SYS_NICE in a container",
    )


def may_raise_priority() -> bool:
    """Return whether the agent may raise its priority, by a trial in a thread: priorities belong to threads."""
    with ThreadPoolExecutor(max_workers=1) as trial:
        return trial.submit(raise_priority).result()


DEAD: Mapping[str, str] = {
    "FLAGS_sync_nccl_allreduce": "torch orders its collectives automatically; unset it",
    "FLAGS_fuse_parameter_memory_size": "DistributedDataParallel(bucket_cap_mb=...) does this in torch; unset it",
    "FLAGS_fuse_parameter_groups_size": "DistributedDataParallel(bucket_cap_mb=...) does this in torch; unset it",
    "NCCL_ASYNC_ERROR_HANDLING": "its name in torch is TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "its name in torch is TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "its name in torch is TORCH_NCCL_DESYNC_DEBUG",
}
"""Variables without an effect, and what to do instead. The first three are Paddle's; since version 2.0 Paddle does not
read them: they are options of its strategy."""


def variable_checks(environ: Mapping[str, str], interfaces: Sequence[str]) -> list[Check]:
    """Check for variables that have no effect; `interfaces` are the network interfaces of this host."""
    checks = [
        warn("variables", f"{name} is set and has no effect", hint) for name, hint in DEAD.items() if name in environ
    ]
    for variable, wanted in misnamed(environ, interfaces).items():
        hint = f"use one of {', '.join(interfaces)}, or unset it"
        checks.append(fail("variables", f"{variable} is {wanted}, which matches no interface of this host", hint))
    return checks or [ok("variables", "none without effect")]
