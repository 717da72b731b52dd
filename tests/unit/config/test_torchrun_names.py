"""torchrun's names for flags mean here what they mean there."""

from __future__ import annotations

import pytest

from elastic.core.model import Np
from launcher.config import argv as command_line
from launcher.config import help_page
from launcher.config.config import Config, worker_argv
from launcher.config.flags import BY_NAME
from launcher.config.parse import parse
from launcher.config.setting import option
from launcher.config.torchrun_names import ALIASES, NO_EFFECT
from tests.support.config_refusal import refusal

SERVER = ("--elastic-server", "10.0.0.5:2379", "--job-id", "j1")


def read(*argv: str, environ: dict[str, str] | None = None) -> Config:
    return parse([*argv, "train.py", "--lr", "0.1"], environ or {})


class TestAliases:
    def test_a_command_line_of_torchrun_can_be_read_as_it_is(self) -> None:
        config = read(
            *("--nnodes", "1:4", "--nproc-per-node=8", "--rdzv-backend", "c10d", "--rdzv-endpoint", "etcd0:2379"),
            *("--rdzv-id", "j1", "--max-restarts", "3", "--local-addr", "10.0.0.7", "--log_dir", "out"),
        )
        assert config.np == Np(low=1, high=4, first=1)
        assert (config.slots, config.servers, config.job_id) == (8, ("etcd0:2379",), "j1")
        assert (config.restarts_max, config.host, config.log_dir) == (3, "10.0.0.7", "out")
        assert (config.script, config.script_args) == ("train.py", ("--lr", "0.1"))

    @pytest.mark.parametrize("name", ALIASES)
    def test_underscores_and_hyphens_spell_the_same_alias(self, name: str) -> None:
        text = {"nnodes": "2", "rdzv_endpoint": "h:1"}.get(name, "7")
        first, *others = [
            command_line.split_argv([*words, "t.py"]).flags
            for words in ((option(name), text), (f"--{name}", text), (f"{option(name)}={text}",))
        ]
        assert first[0][0] == ALIASES[name].flag
        assert others == [first, first]

    @pytest.mark.parametrize(
        ("text", "np"),
        [
            ("2", Np(low=2, high=2, first=2)),
            ("1", Np(low=1, high=1, first=1)),
            ("1:4", Np(low=1, high=4, first=1)),
            ("3:3", Np(low=3, high=3, first=3)),
        ],
    )
    def test_a_number_of_nodes_is_strict_and_a_range_is_a_range(self, text: str, np: Np) -> None:
        assert read("--nnodes", text).np == np

    @pytest.mark.parametrize("text", ["0", "2+", "a", "4:2", ""])
    def test_a_wrong_number_of_nodes_is_reported_under_the_name_that_was_typed(self, text: str) -> None:
        assert refusal("--nnodes", text, "t.py").startswith(f"--nnodes: '{text}'")

    def test_a_wrong_value_is_reported_under_the_name_that_was_typed(self) -> None:
        assert refusal("--rdzv_endpoint=", "t.py").startswith("--rdzv-endpoint: ")
        assert refusal("--master-port", "70000", "t.py").startswith("--master-port: ")
        assert refusal("--rdzv-id") == "--rdzv-id needs a value (NAME)"
        assert refusal("--nnodes") == "--nnodes needs a value (N|MIN:MAX)"

    def test_further_nodes_get_our_names(self) -> None:
        assert read("--nnodes", "2", "--master_port", "29500").given == (("np", "2:2"), ("ctrl_port", "29500"))

    def test_every_alias_stands_for_a_flag_and_is_shown_beside_it_in_the_help(self) -> None:
        text = help_page.help_text()
        for name, alias in ALIASES.items():
            assert name not in BY_NAME
            assert f"  {option(alias.flag)}, {option(name)} " in text
        assert "--rdzv-endpoint, too, is the address of etcd and not that of a node" in " ".join(text.split())


class TestContradictions:
    @pytest.mark.parametrize(
        ("argv", "says"),
        [
            (
                ("--nnodes", "2", "--np", "2"),
                "--nnodes 2 (which means --np 2:2) and --np 2 contradict each other; leave one out",
            ),
            (
                ("--elastic_server", "a:1", "--rdzv_endpoint", "b:1"),
                "--rdzv-endpoint b:1 and --elastic-server a:1 contradict each other; leave one out",
            ),
            (("--rdzv-id=a", "--job-id=b"), "--rdzv-id a and --job-id b contradict each other; leave one out"),
        ],
    )
    def test_an_alias_and_its_flag_with_different_values_are_refused(self, argv: tuple[str, ...], says: str) -> None:
        assert refusal(*argv, "t.py") == says

    def test_an_alias_and_its_flag_with_the_same_value_are_no_contradiction(self) -> None:
        assert read("--nnodes", "2", "--np", "2:2").np == Np(low=2, high=2, first=2)
        assert read("--job-id", "a", "--rdzv-id", "a").job_id == "a"

    def test_an_alias_goes_before_the_variable(self) -> None:
        assert read("--nnodes", "3", environ={"ELASTIC_NP": "5"}).np.low == 3


class TestFlagsWithoutEffect:
    @pytest.mark.parametrize("name", NO_EFFECT)
    def test_they_change_nothing_and_leave_one_note(self, name: str) -> None:
        config = read(option(name), "1", f"--{name}=2")
        assert config.notes == (f"{option(name)} has no effect: {NO_EFFECT[name]}",)
        assert config.given == ()
        assert refusal(option(name)) == f"{option(name)} needs a value (VALUE)"

    def test_their_notes_name_flags_that_exist(self) -> None:
        for note in NO_EFFECT.values():
            for word in note.replace(",", " ").replace(")", " ").replace("(", " ").split():
                if word.startswith("--"):
                    assert word[2:].replace("-", "_") in BY_NAME


class TestStandalone:
    def test_it_is_what_happens_without_a_server(self) -> None:
        config = read("--standalone")
        assert (config.servers, config.local_nodes, config.np) == ((), 1, read().np)

    def test_it_goes_before_variables_that_name_other_nodes(self) -> None:
        environ = {
            "ELASTIC_ETCD": "h:1",
            "PADDLE_ELASTIC_JOB_ID": "j",
            "ELASTIC_IPS": "a,b",
            "ELASTIC_LOCAL_NODES": "3",
        }
        config = read("--standalone", environ=environ)
        assert (config.servers, config.ips, config.local_nodes) == ((), (), 1)

    def test_the_endpoint_of_torchrun_is_ignored_with_it_as_torchrun_does(self) -> None:
        config = read("--rdzv-endpoint", "localhost:0", "--standalone", "--rdzv-id", "j1")
        assert (config.servers, config.job_id) == ((), "j1")
        assert config.notes == ("--rdzv-endpoint has no effect with --standalone: this node starts its own etcd",)

    @pytest.mark.parametrize(
        "argv",
        [
            ("--elastic-server", "h:1"),
            ("--serve", "10.0.0.5"),
            ("--ips", "a,b"),
            ("--local-nodes", "2"),
            ("--servers", "a:1,b:1"),
        ],
    )
    def test_a_flag_that_names_other_nodes_contradicts_it(self, argv: tuple[str, str]) -> None:
        text = refusal("--standalone", *argv, "t.py")
        assert text == (
            f"--standalone runs one node on this machine with its own etcd, and {argv[0]} names others; leave one out"
        )

    def test_its_variable_contradicts_a_flag_and_a_variable(self) -> None:
        environ = {"ELASTIC_STANDALONE": "1", "ELASTIC_ETCD": "h:1"}
        assert refusal("t.py", environ=environ).startswith("ELASTIC_STANDALONE runs one node")


class TestModulesAndPrograms:
    @pytest.mark.parametrize(
        "argv",
        [
            ("-m", "pkg.train"),
            ("--module", "pkg.train"),
            ("-m", "--np", "2", "pkg.train"),
            ("--np", "2", "--module", "--", "pkg.train"),
        ],
    )
    def test_the_module_is_the_first_word_that_is_no_flag(self, argv: tuple[str, ...]) -> None:
        config = parse([*argv, "--lr", "0.1"], {})
        assert (config.module, config.script, config.script_args) == (True, "pkg.train", ("--lr", "0.1"))

    def test_a_module_needs_a_name_and_no_value(self) -> None:
        assert refusal("--module") == "--module needs the name of a module"
        assert "takes no value" in refusal("--module=pkg", "x")

    def test_without_python_a_script_is_run_as_a_program(self) -> None:
        config = read("--no-python")
        assert not config.python
        assert worker_argv(config) == ("train.py", "--lr", "0.1")
        assert refusal("--no_python", "-m", "pkg").startswith("--no-python and -m contradict each other")
