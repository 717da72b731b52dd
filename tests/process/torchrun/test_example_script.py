"""The example that knows nothing of this library: the same file under three launchers, resumed by each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.script_runs import WARM, completed

MODULE = ("-m", "elastic.examples.torchrun_script")
EXAMPLE = Path(__file__).parents[3] / "elastic" / "examples" / "torchrun_script.py"


def epochs(lines: list[str]) -> list[int]:
    """The epochs that were trained, as rank 0 says."""
    return [int(found[1]) for line in lines if (found := re.search(r"epoch (\d+) of", line))]


@pytest.mark.timeout(300)  # Three launchers, one after the other, each of which imports torch.
def test_the_script_resumes_under_plain_python_torchrun_and_elastic_launch(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert epochs(completed(["-W", "error", *MODULE, "--epochs", "2"], tmp_path)) == [1, 2]
    assert epochs(completed([*torchrun, *MODULE, "--epochs", "4"], tmp_path)) == [3, 4]
    launch = ["-m", "launcher", "--nproc-per-node", "2", "--preload", "sklearn.datasets"]
    ours = completed([*launch, *MODULE, "--epochs", "12"], tmp_path, **WARM)
    assert epochs(ours) == list(range(5, 13))
    accuracy = re.search(r"test accuracy (\d+\.\d) % after 12 epochs", "\n".join(ours))
    assert accuracy is not None
    assert float(accuracy[1]) > 90


def test_the_script_is_short_and_imports_nothing_of_ours() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 80
    assert not re.search(r"^\s*(import|from) (elastic|launcher)", text, re.MULTILINE)
