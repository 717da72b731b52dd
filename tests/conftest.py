"""Before a run: bytecode, and which tests stay together. At its end: how many workers of all agents started warm."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import bytecode

STARTED = re.compile(r"workers of generation \d+ run: pids ([\d, ]+) \((warm|cold: .*)\)$", re.MULTILINE)
"""The line of an agent's launcher.log for each start of its workers."""


def pytest_configure(config: pytest.Config) -> None:
    """Once, and not in each of the processes that share the tests."""
    if not hasattr(config, "workerinput"):
        bytecode.write()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give stories of real processes to whoever is free, one by one, and the tests of any other file to one process.

    A file of long stories would otherwise keep one process busy when the others have ended.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.path.parent.name != "process" or _shares(item.path):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}-{item.path.stem}"))


@functools.cache
def _shares(path: Path) -> bool:
    """Tell whether the tests of a file share what is costly to make."""
    return 'scope="module"' in path.read_text()


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
    terminalreporter.write_line(f"warm starts: {starts['warm']} of {total} workers ({starts['warm'] / total:.0%})")
    for how, count in starts.most_common():
        if how != "warm":
            terminalreporter.write_line(f"  {how}: {count}")
