"""The digits example, as a user runs it: plain python, torchrun, and a kill in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import psutil
import pytest

from tests.bench import steplog
from tests.scripts.run_on_tmpfs import NO_MOUNT
from tests.scripts.torch_forkserver import Forked
from tests.support.nursery_harness import LIMIT_S, watch_end

ROOT = Path(__file__).resolve().parents[3]
DIGITS = ("-m", "elastic.examples.digits")
INTERVAL = 50


def environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC_") and k not in {"RANK", "WORLD_SIZE"}}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
        "ELASTIC_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "ELASTIC_STEP_LOG": str(folder / "steps.log"),
    }


def accuracy(output: str) -> float:
    found = re.findall(r"^test accuracy (\d+\.\d) % after \d+ steps$", output, re.MULTILINE)
    assert len(found) == 1, output
    return float(found[0])


def test_the_examples_stay_short_enough_to_copy() -> None:
    for name in ("digits", "char_lm", "torchrun_script"):
        assert len((ROOT / "elastic" / "examples" / f"{name}.py").read_text().splitlines()) < 80


@pytest.mark.timeout(300)
def test_a_run_killed_while_steps_run_goes_on_with_two_workers_and_reaches_the_same_accuracy(tmp_path: Path) -> None:
    """Killed under plain python, resumed under torchrun: the checkpoint does not know the world size."""
    log = tmp_path / "steps.log"
    first = subprocess.Popen(
        [sys.executable, *DIGITS, "--checkpoint_every", str(INTERVAL), "--step_time", "0.002", "--print_every", "1"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    with first.stdout:
        # The save of step 100 begins when that of step 50 stands, and step 101 when it has begun.
        far = any(line.startswith(f"step {2 * INTERVAL + 1} ") for line in first.stdout)
        assert far, "it ended before it was killed"
        first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    killed_at = steplog.read(log)[-1].step
    saved = max(int(path.name[5:15]) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert killed_at - 2 * INTERVAL < saved <= killed_at

    torchrun = [sys.executable, "-W", "default", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = environment(tmp_path) | {"PYTHONWARNINGS": "default"}
    words = [*torchrun, *DIGITS, "--epochs", "15"]
    second = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert second.returncode == 0, second.stderr
    assert accuracy(second.stdout) >= 96
    resumed = [line for line in steplog.read(log) if line.world == 2]
    assert {line.rank for line in resumed} == {0, 1}
    assert resumed[0].step == saved + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_read_only_or_full_folder_ends_the_run_with_one_line_that_names_the_mend(tmp_path: Path) -> None:
    """Real mounts, in a mount namespace of the command's own."""
    (tmp_path / "checkpoints").mkdir()
    for options, said in (("ro", " cannot write there "), ("size=64k", "no space left")):
        words = ("tests.scripts.run_on_tmpfs", options, str(tmp_path / "checkpoints"), DIGITS[1], "--steps", "5")
        run = Forked(words, environment(tmp_path))
        lines = run.output(LIMIT_S).splitlines()
        if run.wait(0) == NO_MOUNT:
            pytest.skip(f"no mount here: {lines}")
        assert run.wait(0) == 1, lines
        last = lines[-1]
        assert said in last
        assert "another --checkpoint-dir" in last


@pytest.mark.timeout(300)
def test_the_demo_keeps_every_promise_and_says_so(tmp_path: Path) -> None:
    """A node killed and another joined while steps run: the same accuracy, and at most one interval done again."""
    environ = environment(tmp_path)
    del environ["ELASTIC_CHECKPOINT_DIR"], environ["ELASTIC_STEP_LOG"], environ["PYTHONWARNINGS"]
    command = [sys.executable, "-m", "elastic.examples.demo", "--step_time", "0.1"]  # Other tests run beside it.
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as demo:
        output, _ = demo.communicate()
    assert demo.returncode == 0, output
    assert "BAD" not in output
    assert re.search(r"world sizes: 3 -> 2 -> 3, from steps", output)
    assert not list(tmp_path.iterdir()), "the demo leaves nothing where it was started"


@pytest.mark.timeout(120)
def test_a_demo_that_is_ended_by_a_signal_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "elastic.examples.demo"]
    environ = environment(tmp_path) | {"TMPDIR": str(tmp_path), "ELASTIC_NO_PRELOAD": "1"}  # No node waits for torch.
    del environ["ELASTIC_CHECKPOINT_DIR"], environ["ELASTIC_STEP_LOG"], environ["PYTHONWARNINGS"]
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        joined = (line for line in demo.stdout if "joined the job" in line)
        assert len([*islice(joined, 3)]) == 3
        ended = [watch_end(child.pid) for child in psutil.Process(demo.pid).children(recursive=True)]
        assert len(ended) >= 7, "etcd and three agents with their nurseries"
        demo.terminate()
        demo.communicate()
    assert demo.returncode == 128 + signal.SIGTERM
    assert all(has_ended(LIMIT_S) for has_ended in ended)
    assert not [left for left in tmp_path.iterdir() if left.name.startswith("elastic-demo-")]
