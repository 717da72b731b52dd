"""How many files an agent, and what it starts, may have open."""

from __future__ import annotations

import subprocess
import sys

STORY = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from launcher.system import limits
limits.raise_nofile_limit()
limit = "import resource, sys; sys.stdin.read(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
child = subprocess.Popen([sys.executable, "-c", limit], stdin=subprocess.PIPE)
limits.restore_nofile_limit(child.pid)
child.communicate()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_an_agent_may_open_more_files_than_it_was_started_with_and_its_nursery_as_many_as_before() -> None:
    child, own = subprocess.check_output([sys.executable, "-c", STORY], text=True).split()
    assert child == "256"
    assert int(own) > 256
