"""A module that is run where a tmpfs lies over one folder, in a mount namespace of this process's own.

run_on_tmpfs.py <options of the mount> <folder> <module> <its arguments>
"""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys

CLONE_NEWNS = 0x00020000
NO_MOUNT = 32
"""mount's own exit code for a mount that failed."""


def mount(options: str, folder: str) -> None:
    """Mount for this process alone; ends it with the reason where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        print(f"unshare: {os.strerror(ctypes.get_errno())}")
        sys.exit(NO_MOUNT)
    # Without the first, the mount would be seen by everybody, as unshare(1) prevents it, too.
    for words in (("--make-rprivate", "/"), ("-t", "tmpfs", "-o", options, "none", folder)):
        if subprocess.run(["mount", *words], check=False).returncode:
            sys.exit(NO_MOUNT)


if __name__ == "__main__":
    mount(*sys.argv[1:3])
    sys.argv[:] = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
