"""What scripts with large frameworks can import, in a Python that has them: `make scripts` installs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.script_runs import LIMIT_S

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-scripts" / "bin" / "python"
SEARCHES = """
import json, os, sys
from launcher.nursery import library_state
from launcher.nursery.import_closure import within
script, *wanted = sys.argv[1:]
installed, before = library_state.installed(), set(sys.modules)
found = within(wanted, [script], os.path.dirname(script), installed)
assert set(sys.modules) == before
print(json.dumps(sorted(found)))
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make scripts installs the frameworks")


@pytest.mark.parametrize(
    ("script", "recorded"),
    [
        (
            "hf_training.py",
            [
                "transformers",
                "transformers.models",
                "transformers.models.gpt2",
                "transformers.models.gpt2.configuration_gpt2",
                "transformers.models.gpt2.modeling_gpt2",
                "transformers.trainer",
            ],
        ),
        ("lightning_training.py", ["importlib.readers", "lightning", "sklearn", "sklearn.datasets"]),
    ],
)
def test_what_a_framework_is_recorded_to_load_late_is_in_the_closure_too(script: str, recorded: list[str]) -> None:
    path = ROOT / "tests" / "bench" / script
    command = [os.fspath(PYTHON), "-c", SEARCHES, os.fspath(path), *recorded, "this", "idlelib.idle", "test.regrtest"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(command, env=environ, stdout=-1, check=True, timeout=LIMIT_S).stdout
    assert json.loads(out) == recorded
