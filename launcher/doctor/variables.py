"""Variables of the environment that do nothing, or not what they seem to do (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.net.interfaces import misnamed
from launcher.system.checks import Check, fail, ok, warn

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
        warn("variables", f"{name} is set and has no effect", mend) for name, mend in DEAD.items() if name in environ
    ]
    for variable, wanted in misnamed(environ, interfaces).items():
        mend = f"use one of {', '.join(interfaces)}, or unset it"
        checks.append(fail("variables", f"{variable} is {wanted}, and no interface here fits", mend))
    return checks or [ok("variables", "none that is set in vain")]
