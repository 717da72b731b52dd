"""What is taken out of the product so that tests of docs/development/requirements.md fail, in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.bytecode import PACKAGES
from tests.support.seed_rows import ROOT

COPIED: Final = ("elastic", "launcher", "tests", "docs", "pyproject.toml", "README.md")
LIMIT_S = 100.0
"""For each test of a run."""
PASSED, FAILED = 0, 1
"""pytest's exit codes; a file that cannot be imported any more is another one."""


class Mutation(NamedTuple):
    """What is taken out: `text`, which `file` has once, becomes `instead`; then `test` of this row fails."""

    row: str
    file: str
    text: str
    instead: str
    test: str


MUTATIONS: Final = (
    Mutation(
        "A4",
        "launcher/config/readers.py",
        """    listed = tuple(part.strip() for part in text.split(","))
    for gpu in listed:
        if not gpu:""",
        """    listed = tuple(text.split(","))
    for gpu in listed:
        if not gpu:""",
        "tests/unit/config/test_slots.py::test_blanks_between_cards_do_not_count",
    ),
    Mutation(
        "A5",
        "launcher/workers/environment.py",
        """lambda p: "PCI_BUS_ID" if""",
        """lambda p: "FASTEST_FIRST" if""",
        "tests/unit/workers/test_environment.py::test_every_worker_sees_the_chosen_cards_in_their_order_and_its_local_rank_picks_one",
    ),
    Mutation(
        "A8",
        "elastic/core/admission.py",
        "if ours and theirs != ours:",
        "if ours and set(theirs) != set(ours):",
        "tests/unit/core/test_admission.py::test_another_list_or_order_of_hosts_is_refused_with_both",
    ),
    Mutation(
        "A12",
        "launcher/config/ps_layout.py",
        "if ps and collective:",
        "if not ps and collective is None:",
        "tests/unit/config/test_ps_layout.py::test_flags_of_both_modes_are_refused_by_name",
    ),
    Mutation(
        "A14",
        "launcher/logs/endpoint_list_writer.py",
        """("PADDLE_TRAINER_ENDPOINTS:", *endpoints, *below)""",
        """(*endpoints, *below)""",
        "tests/unit/logs/test_logger.py::TestEndpoints::test_the_file_is_exactly_the_documented_one",
    ),
    Mutation(  # Paddle's own launcher names the files by the place on the node.
        "A18",
        "launcher/workers/spec_builder.py",
        "rank = action.m_id * generation.slots + local\n",
        "rank = local\n",
        "tests/process/job/test_logs.py::test_a_node_has_the_logs_of_its_own_ranks_only",
    ),
    Mutation(
        "A22",
        "launcher/workers/environment.py",
        "return self.m_id * self.processes + self.local_rank",
        "return self.local_rank",
        "tests/unit/workers/test_environment.py::test_ranks_are_dense_and_unique_over_all_nodes",
    ),
    Mutation(
        "A24",
        "launcher/net/ports.py",
        "raise ConfigError(_too_few(",
        "raise RuntimeError(_too_few(",
        "tests/process/job/test_ports.py::test_too_few_free_ports_are_exit_2_before_the_node_has_registered",
    ),
    Mutation(
        "A27",
        "launcher/config/paddlecloud.py",
        'not all(environ.get(name, "").strip() for name in ALL)',
        'not environ.get(LIST, "").strip()',
        "tests/unit/config/test_paddlecloud.py::test_without_one_of_them_they_say_nothing",
    ),
    Mutation(
        "A28",
        "launcher/text/failure_report.py",
        "ABORT!!! Out of all {world_size} trainers",
        "Out of all {world_size} trainers",
        "tests/unit/text/test_failure_report.py::test_the_sentence_about_the_failed_ranks_is_the_documented_one",
    ),
    Mutation(
        "A30",
        "launcher/logs/file_names.py",
        "{signal} (@0x{sender:x}) received",
        "{signal} received",
        "tests/unit/logs/test_logger.py::TestTheFrameOfAStart::test_a_signal_is_noted_as_in_the_seed",
    ),
    Mutation(
        "A31",
        "elastic/core/root_cause.py",
        "(SECONDARY if worker.secondary else OWN, worker)",
        "(OWN, worker)",
        "tests/unit/core/test_restart_policy.py::test_an_echo_that_was_recorded_first_is_not_the_cause",
    ),
    Mutation(
        "A38",
        "launcher/config/readers.py",
        """if "@" in address:""",
        """if address.startswith("@"):""",
        "tests/unit/config/test_config.py::test_a_password_in_a_server_is_refused_and_not_repeated",
    ),
    Mutation(
        "A41",
        "launcher/config/node_settings.py",
        """environs=("POD_IP",),""",
        """environs=(),""",
        "tests/unit/config/test_config.py::test_the_host_of_a_pod_is_its_ip",
    ),
    Mutation(
        "B4",
        "elastic/train/process_group/topology.py",
        "    with reporting_config_errors():\n        return process_environment()",
        "    return process_environment()",
        "tests/process/project/test_seed_rows.py::test_a_role_that_does_not_exist_is_one_line_and_no_stack_trace",
    ),
    Mutation(
        "B6",
        "elastic/environment.py",
        "PORT_OF_SERVERS = 6174",
        "PORT_OF_SERVERS = 6170",
        "tests/unit/test_environment.py::test_the_defaults_are_those_of_the_quick_start",
    ),
    Mutation(
        "B7",
        "launcher/workers/environment.py",
        """",".join(one.host for one in p.launch.generation.members)""",
        """str(len(p.launch.generation.members))""",
        "tests/process/project/test_seed_rows.py::test_two_machines_with_two_cards_each_differ_in_nothing_but_their_cards",
    ),
    Mutation(
        "C8",
        "launcher/doctor/machine.py",
        """    "FLAGS_sync_nccl_allreduce": "torch orders its collectives automatically; unset it",\n""",
        "",
        "tests/unit/doctor/test_machine.py::test_paddles_three_variables_are_among_them",
    ),
    Mutation(
        "C22",
        "elastic/train/nan_check.py",
        """("ELASTIC_CHECK_NAN", "FLAGS_check_nan_inf")""",
        """("ELASTIC_CHECK_NAN",)""",
        "tests/process/project/test_seed_rows_training.py::"
        "test_with_paddles_variable_a_commit_refuses_nan_names_the_parameter_and_keeps_the_good_checkpoint",
    ),
    Mutation(
        "C14",
        "launcher/config/argv.py",
        """    "--help-env": "help_env",
    "--help_env": "help_env",""",
        """    "--help-environment": "help_env",""",
        "tests/unit/config/test_env_reference.py::test_the_page_has_one_line_for_each_variable",
    ),
    Mutation(
        "C15",
        "launcher/config/argv.py",
        """    "cluster_node_ips": "use --ips",\n""",
        "",
        "tests/unit/config/test_config.py::test_a_flag_of_another_launcher_or_a_mistyped_one_is_answered_with_ours",
    ),
    Mutation(
        "C23",
        "elastic/core/listed_hosts.py",
        "if not ips or missing > len(absent):",
        "if absent is not None:",
        "tests/unit/core/membership/test_host_list.py::test_the_missing_hosts_are_named",
    ),
    Mutation(
        "D5",
        "elastic/script/flags.py",
        "if address in places:",
        "if address is places:",
        "tests/process/job/test_script_config.py::test_a_mistake_is_one_line_and_exit_2_without_a_stack_trace",
    ),
    Mutation(
        "D11",
        "elastic/core/versions.py",
        """partition("+")[0].split(".")[:2]""",
        """partition("+")[0].split(".")[:1]""",
        "tests/unit/agent/test_versions.py::test_another_major_or_minor_version_keeps_nodes_apart",
    ),
    Mutation(
        "D13",
        "launcher/net/traffic_variables.py",
        "(*given, *LOCAL, *hosts)",
        "(*given, *LOCAL)",
        "tests/unit/net/test_traffic_variables.py::test_a_worker_reaches_its_peers_and_etcd_without_a_proxy_and_keeps_it_for_the_rest",
    ),
    Mutation(
        "D14",
        "launcher/net/addresses.py",
        "if not inside or ip is None or ip not in DOCKER_BRIDGE or not servers:",
        "if not inside or ip is None or ip in DOCKER_BRIDGE or not servers:",
        "tests/unit/agent/test_startup_notes.py::test_an_address_of_dockers_bridge_with_a_store_elsewhere_is_told_with_both_mends",
    ),
)

STORIES: Final = tuple(one for one in MUTATIONS if one.test.startswith("tests/process/"))
"""Of real processes: `tests/process/project/test_seed_mutations.py` runs them."""
VALUES: Final = tuple(one for one in MUTATIONS if one not in STORIES)


class Tree:
    """A copy of this tree, in which one place at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._times = count(1)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder / name)
        for name in PACKAGES:  # Their bytecode fits the copy, and only what is changed there is compiled anew.
            for compiled in (ROOT / name).rglob("__pycache__/*.pyc"):
                target = folder / compiled.relative_to(ROOT)
                target.parent.mkdir(exist_ok=True)
                shutil.copy2(compiled, target)

    @contextmanager
    def without(self, mutation: Mutation) -> Iterator[None]:
        """Take a feature out while the block lasts."""
        path = self.folder / mutation.file
        whole = path.read_text()
        found = whole.count(mutation.text)
        assert found == 1, (
            f"{mutation.file} has {mutation.text!r} {found} times and not once: "
            f"write anew what takes row {mutation.row} out"
        )
        self._write(path, whole.replace(mutation.text, mutation.instead))
        try:
            yield
        finally:
            self._write(path, whole)

    def _write(self, path: Path, text: str) -> None:
        """Write a module with a time that no compiled one of it has: python compares seconds, and these are quick."""
        path.write_text(text)
        later = path.stat().st_mtime + 10 * next(self._times)
        os.utime(path, (later, later))

    def run(self, tests: Sequence[str]) -> tuple[int, str]:
        """Run tests in the copy, up to the first that fails; pytest's exit code, and what it says."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "pytest_timeout", "-p", "no:cacheprovider", *tests],
            cwd=self.folder,
            env={**kept, "PYTHONPATH": str(self.folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S * len(tests),
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout + ran.stderr


def whole(folder: Path, mutations: Sequence[Mutation]) -> Tree:
    """A copy in which nothing is taken out and the tests of these mutations pass."""
    made = Tree(folder)
    code, said = made.run([mutation.test for mutation in mutations])
    assert code == PASSED, said
    return made
