"""elastic-k8s-autoscaler as a process, for the server of `fake_kubernetes`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

from launcher.k8s.autoscaler import PROG
from tests.support.fake_kubernetes import NAME, NAMESPACE

LIMIT_S = 60.0


def story(test: Callable[[Path], Coroutine[None, None, None]]) -> Callable[[Path], None]:
    """Run a test that is a coroutine."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


class Scaler:
    """The process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process, token: Path) -> None:
        self.process = process
        self.token = token
        self.lines: list[str] = []

    async def says(self, pattern: str) -> str:
        """Wait for a line, from here on."""
        assert self.process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            while line := (await self.process.stdout.readline()).decode().rstrip():
                self.lines.append(line)
                if re.search(pattern, line):
                    return line
        raise AssertionError(f"ended without {pattern!r}: {self.lines}")


@contextlib.asynccontextmanager
async def scaler(folder: Path, server: str, *words: str, flag: str = "--job") -> AsyncIterator[Scaler]:
    """Run it for the Job or JobSet of `fake_kubernetes`; `flag` names which."""
    token = folder / "token"
    token.write_text("first\n")
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name(PROG)), flag, NAME, "--namespace", NAMESPACE),
        *("--server", server, "--token-file", str(token), "--patience", "0.3", "--again", "0.5", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Scaler(process, token)
    finally:
        with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
            process.kill()
        await process.wait()
