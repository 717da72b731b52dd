"""Uncaught exceptions of scripts that know nothing of our library reach the failure report."""

from __future__ import annotations

from tests.support.agent_process import Node
from tests.support.job_harness import Job, story

THREADS = """
import threading, time
def chatter():
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    for number in range(300):
        print("the loader's thread says", number, flush=True)
threading.Thread(target=chatter).start()
raise ValueError("the data is not there")
"""
CHAINED = """
try:
    {}["key"]
except KeyError as error:
    raise RuntimeError("no such thing") from error
"""
GROUP = """
import atexit
atexit.register(lambda: print("good bye\\n" * 100, flush=True))
raise ExceptionGroup("two of them", [ValueError("first"), TypeError("second")])
"""
SYNTAX = "x = = 1"
RECORDED = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record
sys.stderr = open(os.devnull, "w")
@record
def main():
    raise ValueError("recorded only")
main()
"""
DAMAGED = """
import os
os.mkfifo(os.environ["TORCHELASTIC_ERROR_FILE"])
raise ValueError("beside a damaged file")
"""


async def failed(job: Job, name: str, text: str) -> Node:
    script = job.write(f"{name}.py", text)
    return await job.node("--np", "1", "--max-restarts", "0", "--job-id", f"{job.job_id}-{name}", script=(str(script),))


@story
async def test_the_report_has_the_exception_whatever_the_worker_wrote_after_it(job: Job) -> None:
    scripts = {
        THREADS: ["ValueError: the data is not there"],
        CHAINED: ["RuntimeError: no such thing"],
        GROUP: ["ExceptionGroup: two of them (2 sub-exceptions)", "ValueError: first", "TypeError: second"],
        SYNTAX: ["SyntaxError: invalid syntax"],
        DAMAGED: ["ValueError: beside a damaged file"],
    }
    nodes = [await failed(job, f"script{number}", text) for number, text in enumerate(scripts)]
    for node, ends in zip(nodes, scripts.values(), strict=True):
        assert await node.exits() == 1
        report = node.lines[node.lines.index("The last lines of rank 0's log:") :]
        said = [line.lstrip(" |+-") for line in report]
        assert [line for line in said if line in ends] == ends


@story
async def test_what_torchs_record_wrote_is_in_the_report_although_the_log_has_nothing(job: Job) -> None:
    node = await failed(job, "recorded", RECORDED)
    assert await node.exits() == 1
    assert "    ValueError: recorded only" in node.lines
    assert "ValueError: recorded only" not in node.text("workerlog.0")
