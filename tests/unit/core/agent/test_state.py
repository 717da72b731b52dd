"""The states within the records of an agent."""

from __future__ import annotations

import pytest

from elastic.core.agent.state import STANDINGS, Registration, Relisting, Standing, StoreState


@pytest.mark.parametrize(
    ("steps", "standing"),
    [
        (["lease asked"], Standing.LEASE_ASKED),
        (["lease asked", "lease failed"], Standing.NO_LEASE),
        (["lease asked", "lease granted"], Standing.NO_KEY),
        (["lease asked", "lease granted", "key seen"], Standing.REGISTERED),
        (["lease asked", "lease granted", "key seen", "lease gone"], Standing.NO_LEASE),
    ],
)
def test_a_registration_takes_its_steps(steps: list[str], standing: Standing) -> None:
    registration = Registration()
    for step in steps:
        registration.step(step)
    assert registration.standing is standing


def test_a_step_that_does_not_fit_leads_nowhere() -> None:
    for step, leads in STANDINGS.items():
        for standing in set(Standing) - set(leads):
            registration = Registration(standing=standing)
            registration.step(step)
            assert registration.standing is standing


def test_every_standing_can_be_reached_and_left() -> None:
    arrows = {(start, end) for leads in STANDINGS.values() for start, end in leads.items()}
    assert {start for start, _ in arrows} == {end for _, end in arrows} == set(Standing)


def test_a_listing_that_is_asked_for_is_not_wanted_again_before_it_is_there() -> None:
    store = StoreState()
    store.want_listing()
    assert store.relist is Relisting.WANTED
    store.relist = Relisting.ASKED
    store.want_listing()
    assert store.relist is Relisting.ASKED
