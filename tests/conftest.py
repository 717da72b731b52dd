"""Before a run: bytecode, and which tests stay together. At its end: how many workers of all agents started warm."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support import bytecode

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped, unused-ignore]
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped, unused-ignore]

STARTED = re.compile(
    r"started the workers of generation \d+: pids ([\d, ]+) \((preloaded|not preloaded: .*)\)$", re.MULTILINE
)
"""The line of an agent's launcher.log for each start of its workers."""

settings.register_profile("without a deadline", settings.default, deadline=None)  # A slow machine fails no test.
settings.load_profile("without a deadline")


def pytest_configure(config: pytest.Config) -> None:
    """Once, and not in each of the processes that share the tests."""
    os.environ.setdefault("ELASTIC_SPOT", "none")  # Tests may run on a machine of a cloud.
    os.environ["XDG_CACHE_HOME"] = f"{os.devnull}/none"  # No test finds the lists of imports of another.
    os.environ["PYTHONUNBUFFERED"] = "1"  # What a script has said stands in its log when it is killed.
    if not hasattr(config, "workerinput"):
        bytecode.write()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Give stories of real processes and hosts to whoever is free, one by one, and other files to one process each.

    A file of long stories would otherwise keep one process busy when the others have ended.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Stories(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return path if _shares(config.rootpath, path) else nodeid

    return Stories(config, log)


@functools.cache
def _shares(root: Path, path: str) -> bool:
    """Tell whether the tests of a file stay together: all but stories that share nothing that is costly to make."""
    return path.split("/")[1] not in ("process", "cluster") or 'scope="module"' in (root / path).read_text()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Count what the agents have written down in the folders of this run."""
    factory: pytest.TempPathFactory | None = getattr(config, "_tmp_path_factory", None)
    if factory is None or hasattr(config, "workerinput"):
        return
    starts: Counter[str] = Counter()
    for log in factory.getbasetemp().rglob("launcher.log"):
        for pids, how in STARTED.findall(log.read_text(errors="replace")):
            starts[how] += pids.count(",") + 1
    if not (total := starts.total()):
        return
    terminalreporter.write_line(
        f"preloaded starts: {starts['preloaded']} of {total} workers ({starts['preloaded'] / total:.0%})"
    )
    for how, count in starts.most_common():
        if how != "preloaded":
            terminalreporter.write_line(f"  {how}: {count}")
