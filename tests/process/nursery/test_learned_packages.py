"""Packages that the fork server has loaded for a script: its process is as if the script had imported them itself."""

from __future__ import annotations

import importlib.util
import re
from typing import Final

import pytest

from tests.support import learned_runs, learned_scripts
from tests.support.etcd_servers import Server
from tests.support.learned_runs import MOMENTS, RANKS, Runs, View
from tests.support.learned_scripts import FRAMEWORKS, PACKAGES

pytestmark = pytest.mark.timeout(900)

SCRIPTS = ("transformers", "accelerate", "lightning", "datasets")
"""What only `make scripts` installs. To run them: .venv-scripts/bin/python -m pytest -m scripts tests"""


def _param(package: str) -> object:
    missing = importlib.util.find_spec(package) is None
    skipped = pytest.mark.skipif(missing, reason=f"{package} is not installed; make scripts does it")
    return pytest.param(package, marks=[pytest.mark.scripts, skipped] if package in SCRIPTS else [])


@pytest.fixture(scope="module", params=[_param(package) for package in PACKAGES])
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runs(package: str, etcd: Server, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    return learned_runs.run(etcd, folder, learned_scripts.write(folder, package))


OF_THE_FORK_SERVER: Final = {
    "modules": "the fork server has modules that this script does not import",
    "filters": "and filters for warnings that they set",
    "logging": "and their loggers",
    "log handlers": "and their handlers",
    "atexit": "and what they register",
    "finalizers": "those of the fork server are not called (docs/guides/fast-restarts.md)",
    "torch": "torch is loaded, also where the script does not import it first",
    "thread pools": "and its OpenMP",
    "environ": "torch._inductor sets TORCHINDUCTOR_CACHE_DIR when it is imported first",
    "tasks": "Arrow's jemalloc does without its thread, which the fork server must not have",
    "signals": "SIGRTMAX has a handler of faulthandler, for `elastic-ctl stacks`",
}
"""What a warm worker of today has otherwise than a fresh python, and why: whatever is learned does not add to it."""
OF_ONE_START: Final = ("ELASTIC_", "TORCHELASTIC_", "MASTER_", "PADDLE_", "JOB_TEST_", "WAITS")
"""Variables of the environment that have other values in each start."""
AFTER_THE_GROUP: Final = ("tasks", "descriptors", "finalizers")
"""They depend on what gloo has just done."""
LEARNED: Final = {
    "modules": "modules that the script imports later are loaded before",
    "finalizers": "those of the fork server are not called (docs/guides/fast-restarts.md)",
    "tasks": "Arrow's jemalloc does without its thread, which the fork server must not have",
}
"""What a worker has otherwise than one that has imported its packages itself, in a fork of the same fork server."""
SHARED: Final = {
    r"HfFileSystem\._latest$|hffs\._fs_token_$": "a key of fsspec's cache, which is emptied when the pid changes",
    r"^numpy\.f2py\.rules\.generationtime$": "when f2py was loaded; it stands in the files that f2py makes",
    r"^joblib\._multiprocessing_helpers\.(name|_rand\._rng.*)$": "of a semaphore that was unlinked at once",
    r"_torchdynamo_wrapper_id$|\._ident$": "an address",
}
"""Values that differ between two processes, and not between two forks of one fork server."""
ADDRESS: Final = re.compile("0x[0-9a-f]{6,}")
UNSTABLE: Final = {
    r"^pandas\.core\.computation\.expr\.": "made of a set of classes: their order is that of their addresses",
    r"^scipy\.sparse\._data\.name$": "the last of a set of functions: the same",
    r"^filelock\._core\.|\._afterfork_registry\.": "weak references: it depends on when the collector runs",
    r"logger\._cache$": "what a logger remembers of its level until any logger has another one",
}
"""Values that may differ between any two processes."""
JEMALLOC: Final = "jemalloc_bg_thd"
ONCE: Final = "encodings."
"""matplotlib reads the names of fonts, in encodings of their own, when there is no cache of them."""


def test_everything_that_the_script_imports_is_loaded_before_it(package: str, runs: Runs) -> None:
    assert "; " not in runs.ready, "nothing was left out"
    assert set(PACKAGES[package].names) <= runs.before["learned"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_python_shows_what_it_shows_when_the_script_imports_by_itself(runs: Runs, moment: str) -> None:
    for learned, warm in zip(runs.of("learned", moment), runs.of("warm", moment), strict=True):
        assert missing(warm, learned) == set()
        assert different(learned.seen, warm.seen, moment) <= LEARNED.keys()


@pytest.mark.parametrize("moment", MOMENTS)
def test_python_shows_what_it_shows_in_a_fresh_process(runs: Runs, moment: str) -> None:
    for learned, fresh in zip(runs.of("learned", moment), runs.of("fresh", moment), strict=True):
        assert {name for name in missing(fresh, learned) if name.partition(".")[0] != "launcher"} == set()
        if moment == "imported":
            assert [name for name in fresh.seen["tasks"] if name not in (*learned.seen["tasks"], JEMALLOC)] == []
        assert different(learned.seen, fresh.seen, moment) <= OF_THE_FORK_SERVER.keys()
        for part in ("filters", "log handlers"):
            assert [one for one in fresh.seen[part] if one not in learned.seen[part]] == []
        loggers = learned.seen["logging"]
        assert {name: loggers.get(name) for name in fresh.seen["logging"]} == fresh.seen["logging"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_modules_hold_the_values_of_a_fresh_process(runs: Runs, moment: str) -> None:
    first, second = runs.of("fresh", moment)
    expected = {name: text for name, text in first.values.items() if second.values.get(name) == text}
    found = [view.values for view in runs.of("learned", moment)]
    wrong = {name for name, text in expected.items() if any(values.get(name) != text for values in found)}
    assert sorted(name for name in wrong if counts(runs, name)) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_is_of_one_process_is_not_shared(runs: Runs, moment: str) -> None:
    """The rank, the pid, the state of generators of random numbers, and names that are drawn."""
    first, second = (view.values for view in runs.of("fresh", moment))
    learned = [view.values for view in runs.of("learned", moment)]
    differ = {name for name, text in first.items() if name in second and second[name] != text}
    shared = {name for name in differ if learned[0].get(name) == learned[1].get(name)}
    assert sorted(name for name in shared if counts(runs, name) and not excused(name, first[name])) == []


def test_the_script_writes_the_same(runs: Runs) -> None:
    for rank in RANKS:
        assert normal(runs.text["learned", rank]) == normal(runs.text["fresh", rank])


@pytest.mark.scripts
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="not installed; make scripts does it")
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_script_of_a_framework_itself_writes_the_same(
    name: str, etcd: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("runs")  # That of the test's name is too long for the socket in it.
    runs = learned_runs.run(etcd, folder, learned_scripts.write_framework(folder, name), ())
    assert "; " not in runs.ready, "nothing was left out"
    for rank in RANKS:
        assert runs.text["learned", rank].count("\n") > 3
        assert normal(runs.text["learned", rank]) == normal(runs.text["fresh", rank])


def different(one: dict[str, object], other: dict[str, object], moment: str) -> set[str]:
    """The names of what differs."""
    return {
        name
        for name in one
        if plain(one[name]) != plain(other[name]) and not (moment == "worked" and name in AFTER_THE_GROUP)
    }


def plain(value: object) -> object:
    """Without variables that differ between starts."""
    if isinstance(value, dict):
        return {name: text for name, text in value.items() if not name.startswith(OF_ONE_START)}
    return value


def missing(other: View, learned: View) -> set[str]:
    """The modules that another worker has and this one has not."""
    found = set(other.seen["modules"]) - set(learned.seen["modules"])
    return {name for name in found if not name.startswith(ONCE)}


def counts(runs: Runs, name: str) -> bool:
    """Tell whether a value is one of the modules that were learned, and no chance."""
    module = name
    while module and module not in runs.views["learned", 0, "worked"].seen["modules"]:
        module = module.rpartition(".")[0]
    return module not in runs.before["warm"] and not any(re.search(pattern, name) for pattern in UNSTABLE)


def excused(name: str, text: str) -> bool:
    """Tell whether it may be shared."""
    return any(re.search(pattern, name) for pattern in SHARED) or ADDRESS.search(text) is not None


def normal(text: str) -> str:
    """Without numbers that are times."""
    text = re.sub(r"(?m)^waits\n", "", text)
    text = re.sub(r"'train_(runtime|samples_per_second|steps_per_second)': '[^']*'", "", text)
    text = re.sub(r"\[W\d+ [\d:.]+ ", "[W ", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d+(\.\d+)? ?(s|ms|it/s)\b", "", text)
