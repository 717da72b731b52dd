"""An etcd that is away for longer than a job trusts itself, while real training runs over containers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import plays
from tests.cluster.plays import Play
from tests.cluster.stage import Stage

pytestmark = plays.MARKS


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with plays.play(tmp_path_factory.mktemp("outage"), "--etcd-outage-timeout", "5", machines=2, etcd="3.4") as made:
        yield made


def test_beyond_the_limit_workers_stop_and_agents_stay_and_training_resumes_by_itself(play: Play) -> None:
    async def story(on: Stage) -> None:
        since = on.now
        heal = await play.strike("etcd_away")
        await on.says("lease expired", since=since)
        for machine in on.machines:  # Whose worker loses its peer first may fail before its own right has ended.
            await on.says(r"rank \d ended", since=since, of=machine)
        assert [machine.workers() for machine in on.machines] == [[], []]
        assert [len(machine.agents()) for machine in on.machines] == [1, 1]
        await heal()
        await on.trains(len(on.machines))

    play.act("etcd_away", story)


def test_the_job_ends_with_the_numbers_of_an_undisturbed_one_and_leaves_nothing(play: Play) -> None:
    play.act("the end", Stage.finish)
