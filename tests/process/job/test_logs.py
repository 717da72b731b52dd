"""The files of the log folder, and what each console shows, of real jobs."""

from __future__ import annotations

import json
import stat
import sys
from signal import SIGKILL, SIGTERM

from tests.support.job_harness import Job, story
from tests.support.shared_console import by_rank

PROGRESS = """
import sys
for share in (0, 50, 100):
    sys.stdout.write(f"\\r{share:3}%")
    sys.stdout.flush()
print()
print("isatty", sys.stdout.isatty())
"""
ON_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@story
async def test_every_node_has_all_endpoints_in_rank_order_rewritten_for_each_generation(job: Job) -> None:
    nodes = [await job.node("--np", "2", "--nproc-per-node", "2") for _ in range(2)]
    world = await job.world(1, 4)
    endpoints = world[0].env["PADDLE_TRAINER_ENDPOINTS"].split(",")
    assert [worker.env["PADDLE_CURRENT_ENDPOINT"] for worker in world] == endpoints
    text = "".join(f"{line}\n" for line in ("PADDLE_TRAINER_ENDPOINTS:", *endpoints))
    assert [node.text("endpoints.log") for node in nodes] == [text, text]
    leaving = job.node_of(world[3])
    staying = job.node_of(world[0])
    leaving.signal(SIGTERM)
    await job.world(2, 2)
    smaller = "".join(f"{line}\n" for line in ("PADDLE_TRAINER_ENDPOINTS:", *endpoints[:2]))
    assert staying.text("endpoints.log") == staying.text("endpoints.2.log") == smaller
    assert staying.text("endpoints.1.log") == text


@story
async def test_a_node_has_the_logs_of_its_own_ranks_only(job: Job) -> None:
    nodes = [await job.node("--np", "2", "--nproc-per-node", "2") for _ in range(2)]
    world = await job.world(1, 4)
    for node in nodes:
        ranks = [worker.rank for worker in world if worker.node == node.id]
        for name in ("workerlog", "envlog"):
            found = node.logs().glob(f"{name}.*")
            assert sorted(path.name for path in found) == [f"{name}.{rank}" for rank in ranks]


@story
async def test_the_log_folder_is_log_and_is_made_where_the_flag_says(job: Job) -> None:
    node = await job.node("--np", "1", "--log-dir", "deep/er")
    (worker,) = await job.world(1, 1)
    await worker.exits(0)
    assert await node.exits() == 0
    assert (node.folder / "deep" / "er" / "workerlog.0").exists()
    assert not (node.folder / "log").exists()


@story
async def test_when_rank_0_moves_the_other_node_shows_it(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("joined")
    second = await job.node("--np", "2")
    for worker in await job.world(1, 2):
        await worker.obeys("print", f"rank {worker.rank} in 1")
    first.signal(SIGTERM)
    (worker,) = await job.world(2, 1)
    await worker.obeys("print", "rank 0 in 2")
    await second.shows("^rank 0 in 2$")
    await worker.exits(0)
    assert [await first.exits(), await second.exits()] == [143, 0]
    assert first.shown == ["rank 0 in 1"]
    assert second.shown == ["rank 0 in 2"]


@story
async def test_the_console_can_show_this_nodes_first_all_or_none_with_ranks_where_several_are_shown(job: Job) -> None:
    shown = []
    for console in ("rank0", "local0", "all", "none"):
        shown.append(await job.node("--np", "4", "--nproc-per-node", "2", "--console", console))
        await shown[-1].says("joined")
    world = await job.world(1, 8)
    for worker in world:
        await worker.obeys("print", f"I am {worker.rank}")
        await worker.exits(0)
    for node in shown:
        assert await node.exits() == 0
    # Four nodes on one machine may share a terminal: local0 shows four workers there.
    _, first, all_, _ = (f"[{node.id}]" for node in shown)
    assert [sorted(node.shown) for node in shown] == [
        ["I am 0"],
        [f"{first} rank 2: I am 2"],
        [f"{all_} rank 4: I am 4", f"{all_} rank 5: I am 5"],
        [],
    ]


@story
async def test_on_a_console_that_ranks_share_each_line_of_each_of_them_is_there_once_in_its_order(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "3", "--console", "all")
    world = await job.world(1, 3)
    for worker in world:
        await worker.obeys("print", "ready")
    for worker in world:
        await worker.obeys("print", f"only {worker.rank}")
        await worker.exits(0)
    assert await node.exits() == 0
    said = by_rank(node.shown)
    assert sorted(said) == [(rank, words) for rank in range(3) for words in (f"only {rank}", "ready")]
    assert all(said.index((rank, "ready")) < said.index((rank, f"only {rank}")) for rank in range(3))
    assert all(line.startswith(f"[{node.id}] rank") for line in node.shown)
    for rank in range(3):
        assert node.text(f"workerlog.{rank}").splitlines()[1:3] == ["ready", f"only {rank}"]


ENDLESS_LINES = """
import itertools, os, time
for number in itertools.count():
    os.write(1 + number % 2, b"line %d \\xff\\n" % number)
    time.sleep(0.002)
"""


@story
async def test_json_lines_are_whole_and_say_whose_they_are_also_when_the_agent_is_killed(job: Job) -> None:
    script = job.write("endless.py", ENDLESS_LINES)
    flags = ("--np", "1", "--nproc-per-node", "2", "--console", "all", "--log-format", "json")
    node = await job.node(*flags, script=(str(script),))
    for rank in (0, 1):
        await node.shows(f'line 100 .*"rank":{rank}')
        await node.says(f'line 101 .*"rank":{rank}')
    node.signal(SIGKILL)
    await node.exits()
    await node.leaves_nothing()
    found = [json.loads(line) for line in (*node.shown, *node.lines)]
    kept = [json.loads(line) for line in node.text("launcher.log").splitlines()]
    assert {(line["job"], line["node"], line["what"]) for line in kept} == {(job.job_id, kept[0]["node"], "said")}
    for rank in (0, 1):
        for stream in ("stdout", "stderr"):
            mine = [line for line in found if line["what"] == "output" and line["rank"] == rank == line["local_rank"]]
            numbers = [int(line["text"].split()[1]) for line in mine if line["stream"] == stream]
            assert numbers == list(range(stream == "stderr", 2 * len(numbers), 2))
            assert {line["generation"] for line in mine} == {1}
            assert all(line["text"].endswith("\N{REPLACEMENT CHARACTER}") for line in mine)
    assert any(line["text"].startswith("joined the job as") for line in found)


@story
async def test_a_failure_is_one_json_object(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "0", "--log-format", "json")
    (worker,) = await job.world(1, 1)
    await worker.exits(3)
    assert await node.exits() == 1
    (report,) = (line for line in map(json.loads, node.lines) if line["what"] == "report")
    assert report["level"] == "error"
    assert report["text"].startswith("ABORT!!! Out of all 1 trainers, the trainer process with rank=[0] was aborted.")
    assert json.loads(node.lines[-1])["level"] == "warning"


@story
async def test_older_files_of_a_log_are_kept_on_request(job: Job) -> None:
    script = job.write("runaway.py", RUNAWAY)
    node = await job.node("--np", "1", "--log-max-bytes", "2MiB", "--log-rotate", "3", script=(str(script),))
    assert await node.exits() == 0
    paths = sorted((node.folder / "log").glob("workerlog.0*"))
    assert [path.name for path in paths] == [f"workerlog.0{end}" for end in ("", ".1", ".2", ".3")]
    assert sum(path.stat().st_size for path in paths) <= 2 << 20


@story
async def test_progress_bars_pass_through_to_a_terminal_as_they_are(job: Job) -> None:
    """The agent has a terminal, the worker a pipe; the log has the same bytes."""
    script = job.write("bar.py", PROGRESS)
    node = await job.node("--np", "1", script=(str(script),), within=(sys.executable, "-c", ON_A_TERMINAL))
    assert await node.exits() == 0
    assert "\r  0%\r 50%\r100%\r" in node.shown
    assert "isatty False\r" in node.shown
    assert b"\r  0%\r 50%\r100%\n" in (node.folder / "log" / "workerlog.0").read_bytes()


@story
async def test_a_workers_environment_is_kept_for_its_owner_without_secrets(job: Job) -> None:
    env = {
        "HF_TOKEN": "tok-123",
        "DB": "postgres://me:pw-456@db/x",
        "ELASTIC_SERVE_SECRET": "sec-789",
        "LINES2": "a\nb",
    }
    node = await job.node("--np", "1", environ=env)
    (worker,) = await job.world(1, 1)
    assert worker.env["HF_TOKEN"] == "tok-123", "the worker itself has it"
    path = node.logs() / "envlog.0"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert not [secret for secret in ("tok-123", "pw-456", "sec-789") if secret in text]
    lines = text.splitlines()
    assert [line.partition("=")[0] for line in lines] == sorted(line.partition("=")[0] for line in lines)
    assert {"RANK=0", "DB=postgres://***@db/x", r"LINES2=a\nb", "PYTHONUNBUFFERED=1"} <= set(lines)
    await worker.exits(1)
    await job.world(2, 1)
    assert "ELASTIC_GENERATION=2" in node.text("envlog.0").splitlines()


@story
async def test_logs_are_begun_anew_on_request_and_nothing_else_in_the_folder_is(job: Job) -> None:
    node = await job.node("--np", "1")
    log = node.folder / "log"
    (worker,) = await job.world(1, 1)
    await worker.exits(0)
    await node.exits()
    for name in ("workerlog.7", "serverlog.0", "endpoints.9.log", "mine.txt", "workerlog.bak"):
        (log / name).write_text("old\n")
    again = await job.node("--np", "1", "--log-overwrite", "--rerun", beside=node)
    (worker,) = await job.newest_world(1)
    await worker.exits(0)
    assert await again.exits() == 0
    assert again.text("workerlog.0").count("==== elastic-launch job") == 1
    assert node.id not in again.text("launcher.log")
    assert {path.name for path in log.iterdir() if path.read_text() == "old\n"} == {"mine.txt", "workerlog.bak"}
    assert not [line for line in again.lines if "log_overwrite" in line]


@story
async def test_the_logs_of_an_agent_that_lives_in_the_same_folder_are_never_taken_away(job: Job) -> None:
    first = await job.node("--np", "1:2", "--scale-up-interval", "0")
    (worker,) = await job.world(1, 1)
    await worker.obeys("print", "precious")
    second = await job.node("--np", "1:2", "--log-overwrite", beside=first)
    await second.says(r"--log-overwrite: another agent writes into .*/log, so its logs are appended to")
    await job.world(2, 2)
    assert "precious\n" in first.text("workerlog.0")


@story
async def test_local_nodes_begin_their_shared_folder_anew_once(job: Job) -> None:
    old = job.folder / "A" / "log"
    old.mkdir(parents=True)
    (old / "workerlog.5").write_text("old\n")
    node = await job.node("--local-nodes", "2", "--log-overwrite", server=False)
    for worker in await job.world(1, 2):
        await worker.exits(0)
    assert await node.exits() == 0
    assert not [line for line in node.lines if "log_overwrite" in line]
    assert sorted(path.name for path in old.glob("workerlog.*")) == ["workerlog.0", "workerlog.1"]
    assert old.joinpath("launcher.log").read_text().count("joined the job") == 2


RUNAWAY = """
import os
for number in range(300):
    os.write(1, b"%06d %s\\n" % (number, b"x" * 9_992))
"""
IN_SMALL_FILES = ("/bin/bash", "-c", 'ulimit -f 400; exec "$@"', "bash")
"""No file of what runs in it has more than 400 kB, as on a disk that is nearly full."""


@story
async def test_a_worker_that_writes_without_end_keeps_to_the_bound_and_its_first_and_newest_lines_are_there(
    job: Job,
) -> None:
    script = job.write("runaway.py", RUNAWAY)
    flags = ("--np", "1", "--nproc-per-node", "2", "--log-max-bytes", "1MiB")
    node = await job.node(*flags, script=(str(script),))
    assert await node.exits() == 0
    for rank in (0, 1):
        names = (f"workerlog.{rank}", f"workerlog.{rank}.1")
        assert sum((node.folder / "log" / name).stat().st_size for name in names) <= 1 << 20
        header, *said, closing = node.text(names[0]).splitlines()
        assert header.startswith(f"==== elastic-launch job {job.job_id} gen 1 rank {rank} ")
        assert said[0].startswith("000000 ")
        assert said[-1].startswith("000299 ")
        assert closing == f"==== rank {rank} gen 1 ended: exit 0 ===="


@story
async def test_a_disk_that_takes_nothing_more_costs_the_logs_and_neither_the_agent_nor_the_training(job: Job) -> None:
    script = job.write("runaway.py", RUNAWAY)
    flags = ("--np", "1", "--nproc-per-node", "2")
    node = await job.node(*flags, script=(str(script),), within=IN_SMALL_FILES)
    assert await node.exits() == 0
    for rank in (0, 1):
        (line,) = (line for line in node.lines if "cannot write" in line and f"workerlog.{rank} " in line)
        assert line.endswith("(File too large); its worker's output is not logged")
    assert node.lines[-1].endswith("every worker of generation 1 ended with exit code 0")
