"""Checks in a child process whether torch can be imported: that takes seconds, and a broken library may crash it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from launcher.system.checks import Check, fail, ok, warn
from launcher.system.private_env import inheritable_env

LIMIT_S = 120.0
"""A network disk with cold caches takes long."""
OUTPUT_MARK = "elastic-doctor "
"""Prefix of the child's result line; torch may print other lines."""
ASK = f"""
import json
import torch
import torch.distributed as d
there = d.is_available()
nccl = there and d.is_nccl_available()
print({OUTPUT_MARK!r} + json.dumps(dict(
    torch=torch.__version__,
    cuda=torch.version.cuda or "",
    gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
    gloo=there and d.is_gloo_available(),
    nccl=".".join(map(str, torch.cuda.nccl.version())) if nccl else "",
)))
"""
HINTS: tuple[tuple[str, str], ...] = (
    (r"No module named 'torch'", "pip install torch, in the environment that runs elastic-launch"),
    (
        r"lib(ssl|crypto)\.so",
        "install OpenSSL's libraries (Debian: apt-get install libssl3; RPM: openssl-libs), or add their directory to "
        "LD_LIBRARY_PATH",
    ),
    (r"libcuda\.so", "install the NVIDIA driver; a container needs --gpus all"),
    (
        r"lib(cudart|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|nvToolsExt|"
        r"cupti|cufile|nvshmem)[\w.]*\.so",
        "reinstall torch with pip, which brings the CUDA libraries, or add their directory to LD_LIBRARY_PATH",
    ),
    (r"GLIBCXX_|CXXABI_", "install a newer libstdc++ (Debian: libstdc++6; conda: libstdcxx-ng)"),
    (r"GLIBC_", "this torch requires a newer system; use a newer image"),
    (r"libgomp\.so", "install libgomp (Debian: apt-get install libgomp1)"),
    (
        r"cannot open shared object file",
        "install the package that has this library, or add its directory to LD_LIBRARY_PATH",
    ),
    (r"undefined symbol", "libraries of two versions are mixed; unset LD_LIBRARY_PATH, or reinstall torch"),
)
"""Patterns of errors and their fixes; the first match applies."""


class TorchReport(msgspec.Struct, frozen=True):
    """The result of the child."""

    torch: str
    cuda: str
    gpus: int
    gloo: bool
    nccl: str


def torch_checks(environ: Mapping[str, str], gpus: int) -> list[Check]:
    """Import torch in a child process; `gpus` is the number of GPUs that this host lists."""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", ASK],
            env=inheritable_env(environ, ()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            fail("torch", f"import torch takes more than {LIMIT_S:.0f} s", "check the disk on which it is installed")
        ]
    report_lines = [line for line in ran.stdout.decode(errors="replace").splitlines() if line.startswith(OUTPUT_MARK)]
    if ran.returncode or not report_lines:
        return [import_failure(ran.returncode, ran.stderr.decode(errors="replace"))]
    return torch_check(msgspec.json.decode(report_lines[-1].removeprefix(OUTPUT_MARK), type=TorchReport), gpus)


def import_failure(code: int, complaint: str) -> Check:
    """Report the error of a failed import, with its fix."""
    if code < 0:
        return fail("torch", f"import torch crashes with {signal.Signals(-code).name}", "reinstall torch")
    errors = [line.strip() for line in complaint.splitlines() if line and not line.startswith((" ", "Traceback"))]
    error = errors[-1] if errors else f"exit code {code}"
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, error)), "run python -c 'import torch'")
    return fail("torch", f"import torch fails: {error}", hint)


def torch_check(report: TorchReport, gpus: int) -> list[Check]:
    """Compare what torch reports with the GPUs of this host."""
    checks = [ok("torch", f"{report.torch}, {f'CUDA {report.cuda}' if report.cuda else 'without CUDA'}")]
    if gpus and not report.gpus:
        hint = "install a torch that is built for CUDA" if not report.cuda else "its CUDA may be newer than the driver"
        checks.append(warn("torch's GPUs", f"nvidia-smi lists {gpus}, but torch can use none", hint))
    if not report.gloo:
        checks.append(fail("backends", "this torch has no gloo", "install an official build of torch"))
    elif not report.nccl:
        level = warn if gpus else ok
        checks.append(level("backends", "gloo" + ("; no NCCL, so GPUs cannot exchange data" * bool(gpus))))
    else:
        checks.append(ok("backends", f"gloo, NCCL {report.nccl}"))
    return checks
