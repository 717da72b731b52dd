"""Which linked nodes count as heard while they are asked again and again, and since when."""

from __future__ import annotations

from collections.abc import Callable

from launcher.peers.doubt import NEVER, LinkDoubt

EVERY_S = 1.25
Timer = tuple[float, Callable[[], None]]


class Asker:
    """A `LinkDoubt`, its clock, and what it tells."""

    def __init__(self, up: str) -> None:
        self.now = 10.0
        self.asked: list[float] = []
        self.timers: list[Timer] = []
        self.told: tuple[frozenset[str], float] = (frozenset(), NEVER)
        self.doubt = LinkDoubt(
            lambda number: self.asked.append(self.now), self._tell, self._later, clock=lambda: self.now
        )
        self.doubt.links_changed(up)

    def _tell(self, nodes: frozenset[str], heard_at: float) -> None:
        self.told = nodes, heard_at

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, call))

    def round(self, answers: str, after_s: float = 0.1) -> tuple[str, float]:
        """These nodes answer the question that is open; what is told then, and the time of the next round comes."""
        self.now += after_s
        self.doubt.answered(len(self.asked), frozenset(answers))
        told = "".join(sorted(self.told[0])), self.told[1]
        ((self.now, call),) = self.timers
        self.timers.clear()
        call()
        return told


def test_nobody_is_asked_before_there_is_doubt_and_after_it() -> None:
    asker = Asker("ab")
    assert (asker.asked, asker.told) == ([], (frozenset("ab"), NEVER))
    asker.doubt.every(EVERY_S)
    asker.round("ab")
    assert asker.asked == [10.0, 11.25]
    asker.doubt.every(0.0)
    asker.round("ab")
    assert asker.asked == [10.0, 11.25]
    asker.doubt.every(EVERY_S)
    assert asker.asked == [10.0, 11.25, 12.5]


def test_who_misses_the_first_question_is_silent_until_it_answers() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    assert asker.round("a") == ("a", 10.0)
    assert asker.round("a") == ("a", 11.25), "who is silent does not keep the others from being heard"
    assert asker.round("ab") == ("ab", 12.5)


def test_no_node_is_silent_any_more_when_the_doubt_is_over() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    asker.doubt.every(0.0)
    asker.round("a")
    assert asker.told == (frozenset("ab"), 10.0)


def test_who_answered_the_question_before_may_miss_one_and_not_two() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    assert asker.round("ab") == ("ab", 10.0)
    assert asker.round("a") == ("ab", 10.0), "it is late, and not heard since"
    assert asker.round("a") == ("a", 12.5)


def test_an_answer_from_long_before_does_not_excuse_a_missed_question() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    asker.doubt.every(0.0)
    asker.round("ab")
    asker.now += 3 * EVERY_S
    asker.doubt.every(EVERY_S)
    assert asker.round("a") == ("a", asker.asked[-2])


def test_a_node_whose_link_is_new_is_heard_whatever_it_has_missed_before() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    asker.round("a")
    asker.doubt.links_changed("a")
    asker.doubt.links_changed("ab")
    assert asker.told[0] == frozenset("ab")


def test_a_link_that_comes_up_while_others_are_asked_is_not_taken_for_silent() -> None:
    asker = Asker("a")
    asker.doubt.every(EVERY_S)
    asker.doubt.links_changed("ab")
    assert asker.round("a") == ("ab", 10.0)


def test_a_node_whose_link_ends_while_it_is_asked_is_not_missed() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    asker.doubt.links_changed("a")
    assert asker.round("a") == ("a", 10.0)


def test_an_answer_to_an_older_question_counts_no_more() -> None:
    asker = Asker("ab")
    asker.doubt.every(EVERY_S)
    asker.doubt.answered(0, frozenset())
    assert asker.told == (frozenset("ab"), NEVER)
    assert asker.timers == []
