"""How workers of `elastic.init` wait for each other; this process plays the agent of each."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from elastic.channel.messages import (
    GroupFormed,
    JoiningGroup,
    PreparationOver,
    Preparing,
    Progress,
    WorkerMessage,
    clock,
)
from elastic.channel.server import ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments
from tests.scripts.torch_forkserver import Forked
from tests.support.etcd_servers import free_ports
from tests.support.script_runs import LIMIT_S, environment


class World:
    """Ranks of one world, each with this process as its agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heard: list[tuple[int, WorkerMessage]] = []
        self.ranks: dict[int, Forked] = {}
        self.server = ChannelServer(
            folder / "channel", self._on_message, segments=Segments(limit_bytes=1 << 20), detail=self._complain
        )
        self.port = str(free_ports(1)[0])

    def _complain(self, text: str) -> None:
        raise AssertionError(text)

    def _on_message(self, connection: WorkerConnection, message: WorkerMessage) -> None:
        assert connection.hello is not None
        self.heard.append((connection.hello.rank, message))

    def start(self, rank: int, *words: str, size: int = 2) -> None:
        environ = environment(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=self.port,
            ELASTIC_CHANNEL=self.server.path,
            PYTHONWARNINGS="ignore",  # Python's own start shows none of a socket that is left open.
        )
        with self._errors(rank).open("w") as errors:
            self.ranks[rank] = Forked(("tests.scripts.rendezvous_worker", *words), environ, errors=errors.fileno())

    def _errors(self, rank: int) -> Path:
        return self.folder / f"errors.{rank}"

    def until(self, look: Callable[[int, WorkerMessage], bool]) -> WorkerMessage:
        """Hear the workers until one says this."""
        seen = 0
        while True:
            for rank, message in self.heard[seen:]:
                if look(rank, message):
                    return message
            seen = len(self.heard)
            assert select.select([self.server.fileno()], [], [], LIMIT_S)[0], self.heard
            self.server.serve()

    def until_waiting(self, rank: int, text: str) -> float:
        """A worker says that it waits for these, whether one of them prepares something, and since when."""
        wanted = JoiningGroup(text, prepares="(" in text)

        def is_wanted(who: int, message: WorkerMessage) -> bool:
            return who == rank and isinstance(message, JoiningGroup) and replace(message, at=0.0) == wanted

        message = self.until(is_wanted)
        assert isinstance(message, JoiningGroup)
        assert 0 < message.at <= clock()
        return message.at

    def end(self, rank: int) -> tuple[int, str, str]:
        """Its exit code, and all that it wrote to stdout and stderr."""
        out = self.ranks[rank].output(LIMIT_S)
        code = self.ranks.pop(rank).returncode
        assert code is not None
        return code, out, self._errors(rank).read_text()

    def close(self) -> None:
        for process in self.ranks.values():
            process.kill()
        self.server.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    it = World(tmp_path)
    yield it
    it.close()


def test_those_who_wait_name_who_is_missing_and_then_say_that_all_have_met(world: World) -> None:
    world.start(0, "init")
    asked_at = world.until_waiting(0, "rank 1")
    world.start(1, "init")
    met = world.until(lambda who, message: who == 0 and isinstance(message, JoiningGroup) and message.met)
    assert isinstance(met, JoiningGroup)
    assert met.at == asked_at, "when its script asked, and not when all were there"
    for rank in (0, 1):
        world.until(lambda who, message, rank=rank: who == rank and isinstance(message, GroupFormed))  # type: ignore[misc]
        assert world.end(rank)[:2] == (0, f"{rank} 2\n")


def test_who_waits_for_rank_0_says_so(world: World) -> None:
    world.start(1, "init")
    world.until_waiting(1, "rank 0")
    world.start(0, "init")
    assert world.end(0)[:2] == (0, "0 2\n")
    assert world.end(1)[:2] == (0, "1 2\n")


def test_a_worker_that_prepares_is_named_with_its_reason_and_nobody_gives_up_meanwhile(world: World) -> None:
    """Rank 1 prepares before rank 0 is there; rank 0 waits longer than its limit."""
    world.start(1, "preparing=downloading", "preparing=unpacking", "wait", "init")
    world.until(lambda who, message: message == Preparing("unpacking"))
    world.start(0, "init=3")
    for _ in range(5):
        world.until_waiting(0, "rank 1 (unpacking)")
        world.heard.clear()
    stdin = world.ranks[1].stdin
    assert world.ranks[0].poll() is None
    stdin.write("go on\n")
    stdin.flush()
    world.until(lambda who, message: message == PreparationOver())
    assert world.end(0)[:2] == (0, "0 2\n")
    assert world.end(1)[:2] == (0, "1 2\n")


def test_rank_0_may_prepare_too(world: World) -> None:
    world.start(0, "preparing=downloading", "wait", "ready", "init")
    world.until(lambda who, message: message == Preparing("downloading"))
    world.start(1, "init=3")
    for _ in range(5):
        world.until_waiting(1, "rank 0 (downloading)")
        world.heard.clear()
    stdin = world.ranks[0].stdin
    stdin.write("go on\n")
    stdin.flush()
    assert world.end(0)[:2] == (0, "0 2\n")
    assert world.end(1)[:2] == (0, "1 2\n")


def test_a_wait_that_takes_too_long_ends_with_one_error_that_names_the_missing(world: World) -> None:
    world.start(0, "init=1", size=3)
    code, _, said = world.end(0)
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith("elastic.errors.WorkersMissing: waited 1 s for rank 1, rank 2; see the logs")


def test_a_wait_for_rank_0_that_takes_too_long_names_it_and_its_address(world: World) -> None:
    world.start(1, "init=1")
    code, _, said = world.end(1)
    assert code == 1
    said_last = said.splitlines()[-1]
    assert said_last.startswith(
        f"elastic.errors.WorkersMissing: rank 0 did not listen at 127.0.0.1:{world.port} for 1 s"
    )


def test_a_report_reaches_the_agent(world: World) -> None:
    world.start(0, "report=5", size=1)
    assert world.end(0)[0] == 0
    said = world.until(lambda who, message: isinstance(message, Progress))
    assert isinstance(said, Progress)
    assert (said.step, said.world, said.metrics) == (5, 1, {"loss": 0.5})
    assert 0 < said.at <= clock()
