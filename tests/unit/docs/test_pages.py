"""What the pages in docs/ say about the code is what the code says.

What stands between `<!-- made: NAME -->` and `<!-- end -->` is made here; with REWRITE_DOCS=1 in the environment this
test writes it anew.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from elastic import errors
from elastic.core import admission, decide, keys, model, restart_policy
from elastic.core.agent.table import TABLE
from elastic.core.failure_class import FAILURE_CLASSES
from elastic.core.membership.decision import ConcludeJob, FormGeneration, OpenGate, Reason, WaitDecision
from elastic.core.membership.reform import REFORM
from elastic.core.ps import cluster_spec
from elastic.core.ps import model as ps_model
from elastic.core.restart_policy import Judgement
from elastic.errors import ElasticError
from launcher.config import argv, env_reference, help_page
from launcher.config.config import Config
from launcher.config.env_reference import DocumentedVariables
from launcher.config.flags import BY_NAME, FLAGS
from launcher.config.setting import Flag, option
from launcher.config.torchrun_names import ALIASES, NO_EFFECT
from launcher.job import named_job
from launcher.metrics.catalog import METRICS
from launcher.system.private_env import SECRETS
from launcher.workers import environment
from launcher.workers.environment import CollectiveContext, JobContext, LaunchContext, worker_environment
from launcher.workers.failure_causes import CAUSES
from launcher.workers.ps_environment import DOCUMENTED, TaskContext, ps_environment
from tests.bench import against
from tests.bench import table as table_of_figures
from tests.sim.life import FAULTS as FAULTS_OF_THE_SIMULATION
from tests.support import ctl_reference, packages

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
REWRITE = os.environ.get("REWRITE_DOCS") == "1"
MADE = re.compile(r"(<!-- made: (?P<name>[a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

DECISIONS = {
    WaitDecision: "wait",
    FormGeneration: "next generation",
    OpenGate: "go",
    ConcludeJob: "verdict",
    Judgement: "",
}
"""What a rule may return, in words."""
RULE_LINES_MAX = 25


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def agent_table() -> str:
    return table(
        ("phase", "row", "guard", "effect", "next phase"),
        (
            (row.phase, row.name.partition(": ")[2], code(row.guard.__name__), code(row.effect.__name__), row.to)
            for row in TABLE
        ),
    )


def agent_figure() -> str:
    """The same table as a figure: one arrow for all rows between two phases."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in TABLE:
        arrows.setdefault((row.phase, row.to), []).append(row.name.partition(": ")[2])
    lines = [f"    {phase} --> {to}: {', '.join(names)}" for (phase, to), names in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def rules(*tables: tuple[str, Sequence[Callable[..., object]]]) -> str:
    """Tables of rules, each below its heading: name, sentence, and the kind of decision where there are several."""
    head, made = ("rule", "sentence", "what is decided"), []
    for title, rows in tables:
        cells = [rule_cells(rule) for rule in rows]
        columns = 3 if any(decided for _, _, decided in cells) else 2
        made.append(f"#### {title}\n\n" + table(head[:columns], [row[:columns] for row in cells]))
    return "\n\n".join(made)


def rule_cells(rule: Callable[..., object]) -> tuple[str, str, str]:
    """A rule in its table: what it decides stands in the annotation of its result."""
    result = typing.get_type_hints(rule)["return"]
    kinds = [DECISIONS[kind] for kind in (typing.get_args(result) or (result,)) if kind in DECISIONS]
    return code(rule.__name__), sentence(rule), " or ".join(kinds)


def sentence(rule: Callable[..., object]) -> str:
    return (rule.__doc__ or "").partition("\n")[0]


def job_rules(kind: decide.Kind) -> str:
    return rules(*((stage[0].upper() + stage[1:], rows) for stage, rows in decide.RULES[kind].items()))


def flags() -> str:
    return table(
        ("group", "flag", "default", "environment", "meaning"),
        (
            (
                flag.group,
                code(", ".join((*flag.spellings, *aliases(flag))) + f" {flag.metavar}".rstrip()),
                plain(help_page.shown_default(flag)),
                ", ".join(map(code, help_page.shown_variables(flag))),
                plain(help_page.meaning(flag)),
            )
            for flag in FLAGS
        ),
    )


def aliases(flag: Flag) -> tuple[str, ...]:
    return tuple(option(name) for name in help_page.aliases_of(flag))


def variables_table(rows: Sequence[DocumentedVariables]) -> str:
    return table(("variable", "value"), ((", ".join(map(code, row.names)), plain(row.meaning)) for row in rows))


def foreign_flags() -> str:
    rows = ((f"-{name}" if len(name) == 1 else f"--{name}", hint) for name, hint in argv.HINTS.items())
    return table(("flag", "here"), ((code(flag), plain(hint)) for flag, hint in rows))


def what_goes_wrong() -> str:
    return table(
        ("fault", "what happens"),
        ((code(fault.__name__), (fault.__doc__ or "").partition("\n")[0]) for fault in FAULTS_OF_THE_SIMULATION),
    )


def code(text: str) -> str:
    return f"`{text}`"


def plain(text: str) -> str:
    """Text outside backticks, where <rank> would be a tag."""
    return text.replace("<", "&lt;")


def failure_classes() -> str:
    return table(
        ("class", "meaning", "what it costs alone", "but", "rules"),
        (
            (code(failure), row.meaning, row.cost, row.but, ", ".join(map(code, row.rules)))
            for failure, row in FAILURE_CLASSES.items()
        ),
    )


def failure_causes() -> str:
    """Numbers of the words are left out."""
    return table(
        ("cause", "how it is recognised", "what is said of it", "class"),
        (
            (cause.name, cause.recognised, re.sub(r"{.*?}", "…", cause.words or cause.why()), code(cause.failure))
            for cause in CAUSES
        ),
    )


def process_variables() -> str:
    return table(
        ("variable", "who", "value"),
        ((", ".join(map(code, row.names)), row.who or "all", plain(row.meaning)) for row in DOCUMENTED),
    )


def metrics() -> str:
    """Buckets are told in the last column."""
    rows = []
    for row in METRICS:
        bounds = f"; buckets {' '.join(f'{bound:g}' for bound in row.buckets)}" if row.buckets else ""
        rows.append((code(row.full), row.kind, ", ".join(map(code, row.labels)), f"{row.help}{bounds}"))
    return table(("metric", "type", "labels", "meaning"), rows)


def against_torchrun() -> str:
    rows = ((*cells, code(command)) for *cells, command in against.rows())
    return table(("", "elastic-launch", "torchrun", "measured with"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "against torchrun": against_torchrun,
    "packages": lambda: table(("package", "what it is for"), packages.table()),
    "imports": packages.figure,
    "agent table": agent_table,
    "agent figure": agent_figure,
    "preconditions": lambda: rules(("Before any other rule", decide.PRECONDITIONS)),
    "collective rules": lambda: job_rules(decide.Kind.COLLECTIVE),
    "reform rules": lambda: rules(("No member is left", REFORM)),
    "parameter server rules": lambda: job_rules(decide.Kind.PARAMETER_SERVERS),
    "assembly rules": lambda: rules(("A generation is put together", cluster_spec.ASSEMBLY)),
    "stop rules": lambda: job_rules(decide.Kind.STOPPED),
    "failure classes": failure_classes,
    "failure causes": failure_causes,
    "restart rules": lambda: rules(("What a failure costs", restart_policy.RULES)),
    "admission rules": lambda: rules(
        ("A node is to be registered", admission.ADMISSION), ("A node is refused", admission.INCOMPATIBILITIES)
    ),
    "flags": flags,
    "foreign flags": foreign_flags,
    "read variables": lambda: variables_table(env_reference.READ),
    "worker variables": lambda: variables_table(environment.VARIABLES),
    "process variables": process_variables,
    "faults": what_goes_wrong,
    "metrics": metrics,
    "connection flags": ctl_reference.connection_flags,
    "commands of ctl": ctl_reference.commands_of_ctl,
}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_table_that_is_made_from_the_code_says_what_the_code_says(page: Path) -> None:
    written = page.read_text()
    made = MADE.sub(lambda part: f"{part[1]}\n{PARTS[part['name']]()}\n\n{part[3]}", written)
    if REWRITE:
        page.write_text(made)
    else:
        assert written == made, "REWRITE_DOCS=1 pytest tests/unit/docs/test_pages.py writes it anew"


def test_every_table_is_on_a_page() -> None:
    assert sorted(part["name"] for page in pages() for part in MADE.finditer(page.read_text())) == sorted(PARTS)


def tables_of_rules() -> list[Callable[..., object]]:
    """Every rule there is, once."""
    of_jobs = [rule for stages in decide.RULES.values() for rows in stages.values() for rule in rows]
    return list(
        dict.fromkeys(
            [
                *decide.PRECONDITIONS,
                *of_jobs,
                *REFORM,
                *cluster_spec.ASSEMBLY,
                *restart_policy.RULES,
                *admission.ADMISSION,
                *admission.INCOMPATIBILITIES,
            ]
        )
    )


def test_every_rule_has_its_sentence_and_fits_on_a_screen() -> None:
    for rule in tables_of_rules():
        lines, _ = inspect.getsourcelines(rule)
        assert sentence(rule).endswith("."), rule
        assert len(lines) <= RULE_LINES_MAX, rule


def test_a_rule_of_a_collective_job_has_the_name_of_its_reason() -> None:
    stages = decide.RULES[decide.Kind.COLLECTIVE]
    names = {rule.__name__ for rows in (*stages.values(), REFORM, decide.PRECONDITIONS) for rule in rows}
    assert {name for name in names if name.upper() not in Reason.__members__} == {"nobody_left", "completed_before"}


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one of the same depth."""
    text = (DOCS / page).read_text()
    assert f"\n## {title}\n" in text
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """What stands in the first column of the tables of a text, without their heads."""
    cells = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    return [cell for cell, after in zip(cells, [*cells[1:], ""], strict=True) if cell != "---" and after != "---"]


def quoted(text: str) -> list[str]:
    """The words in backticks."""
    return re.findall(r"`([^`]+)`", text)


def everything_told(base: dict[str, str], world: model.Generation, gpu_ids: tuple[str, ...] = ()) -> LaunchContext:
    """What a process is told when everything was asked for."""
    return LaunchContext(
        base=base,
        config=Config(
            script="train.py",
            gpus=gpu_ids,
            gpu_ids=gpu_ids,
            resume_from="r",
            allow_rollback=True,
            check_nan=True,
            no_torch_patch=True,
        ),
        generation=world,
        master="h:7000",
        restarts=0,
        restarts_max=3,
        node_id="h-1",
        incarnation="i",
        endpoints_file="e",
        interface="eth0",
        learned=JobContext(saved="{}", restore_step=1, channel="c"),
    )


def test_every_variable_of_a_worker_is_explained_and_no_other() -> None:
    place = model.GenerationMember("h-1", "h", (7000,), (8000, 8001))
    world = model.Generation(g=1, run=1, leader="", why=model.ChangeReason.FIRST, reason="", members=(place,), slots=2)
    made: dict[str, str] = {}
    for gpu_ids in ((), ("3", "2")):
        told = everything_told({"http_proxy": "http://p:1"}, world, gpu_ids)
        process = CollectiveContext(launch=told, m_id=0, local_rank=0, error_file="x", progress_file="y")
        made |= worker_environment(process)
    cells = first_cells(section("reference/environment.md", "Environment of a worker"))
    explained = [name for cell in cells for name in quoted(cell)]
    assert sorted(explained) == sorted(made.keys() - {"http_proxy"})


def test_what_is_kept_from_a_worker_is_named_and_nothing_else() -> None:
    (sentence,) = re.findall(r"[^.]+ are not passed on", section("reference/environment.md", "Environment of a worker"))
    assert set(quoted(sentence)) == SECRETS


def test_every_variable_of_a_parameter_server_process_is_explained_and_no_other() -> None:
    tasks = tuple(ps_model.Task(role, 0) for role in (ps_model.Role.SERVER, ps_model.Role.HETER, ps_model.Role.WORKER))
    place = ps_model.TaskMember("h-1", "h", (7000,), (8000, 8001, 8002), tasks)
    world = ps_model.ClusterSpec(
        g=1, run=1, leader="", why=model.ChangeReason.FIRST, reason="", members=(place,), slots=1
    )
    made = {
        task.role: ps_environment(
            TaskContext(
                launch=everything_told({"http_proxy": "http://p:1"}, world),
                place=place,
                task_index=number,
                roster_file="r",
                error_file="x",
                progress_file="y",
            )
        )
        for number, task in enumerate(tasks)
    }
    assert made[ps_model.Role.HETER].keys() == made[ps_model.Role.WORKER].keys()
    rows = [
        [cell.strip() for cell in line.split("|")[1:4]]
        for line in section("reference/environment.md", "Environment of a parameter-server process").splitlines()
        if line.startswith("| `")
    ]
    for role, words in (
        (ps_model.Role.SERVER, ("all", "servers")),
        (ps_model.Role.WORKER, ("all", "workers, heterogeneous")),
    ):
        explained = [name for variables, who, _ in rows for name in quoted(variables) if who in words]
        assert sorted(explained) == sorted(made[role].keys() - {"http_proxy"})


def test_every_exit_code_of_an_error_is_explained() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ElasticError)]
    of_launch, of_ctl = (section("reference/exit-codes.md", title) for title in ("elastic-launch", "elastic-ctl"))
    assert {str(kind.exit_code) for kind in kinds} <= set(first_cells(of_launch))
    assert {str(named_job.NO_SUCH_JOB), "2", "3", "4"} <= set(first_cells(of_ctl))


def test_every_document_of_a_job_is_explained() -> None:
    drawn = re.findall(r"^    <prefix>/<job>/(\S+)", keys.__doc__ or "", re.MULTILINE)
    assert [quoted(cell) for cell in first_cells(section("development/protocol.md", "Records"))] == [
        [key] for key in drawn
    ]


@pytest.mark.parametrize("name", table_of_figures.PAGES)
def test_the_tables_of_figures_have_what_was_measured(name: str) -> None:
    text = table_of_figures.page(name, table_of_figures.tables())
    if REWRITE:
        (ROOT / name).write_text(text)
    assert (ROOT / name).read_text() == text, "python -m tests.bench.table --write makes them again"


SINCE_TORCH_2_6 = {
    *("duplicate_stderr_filters", "duplicate_stdout_filters", "event_log_handler", "log_line_prefix_template"),
    *("numa_binding", "print_completion", "shutdown_timeout", "signals_to_handle", "virtual_local_rank"),
}
"""Flags of the newest torchrun that an older one may lack."""


def flags_of_torchrun() -> set[str]:
    """Every long flag of the torchrun that is installed, without its dashes."""
    from torch.distributed.run import get_args_parser

    actions = get_args_parser()._actions
    written = {flag for action in actions for flag in action.option_strings if flag.startswith("--")}
    return {flag.removeprefix("--").replace("-", "_") for flag in written} - {"help"}


def test_every_flag_of_torchrun_stands_on_its_page_and_is_ours_or_has_a_hint() -> None:
    rows = [
        line.split("|")[1:3] for line in (DOCS / "guides/from-torchrun.md").read_text().splitlines() if line[:1] == "|"
    ]
    of_torchrun, ours = (
        {name.removeprefix("--").replace("-", "_") for row in rows for name in quoted(row[column]) if "--" in name}
        for column in (0, 1)
    )
    assert of_torchrun == flags_of_torchrun() | SINCE_TORCH_2_6
    assert of_torchrun <= {*BY_NAME, *argv.HINTS, *ALIASES, *NO_EFFECT, "module"}
    assert ours <= set(BY_NAME)


def test_every_command_line_for_people_from_paddle_can_be_read() -> None:
    lines = [
        line for line in section("guides/from-paddle-launch.md", "The same command lines").splitlines() if "`" in line
    ]
    texts = [text for line in lines for text in quoted(line.split("|")[2])]
    commands = [words for text in texts if len(words := shlex.split(text)) > 1]
    assert len(commands) >= len(lines) - 1, "one row says: the same"
    for words in commands:
        rest = words[3:] if words[0] == "python" else words[1:]
        assert argv.split_argv(rest).script == "train.py", words
    same = section("guides/from-paddle-launch.md", "The same flags")
    assert {name[2:].replace("-", "_") for name in quoted(same) if name.startswith("--")} <= BY_NAME.keys()
