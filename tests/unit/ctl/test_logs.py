"""How long `elastic-ctl logs --follow` asks a node that does not answer."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.ctl.logs import tries_s
from tests.support.job_status import SPEC, view


@pytest.mark.parametrize(("lease_ttl_s", "seconds"), [(5.0, 30.0), (15.0, 30.0), (600.0, 1200.0)])
def test_a_node_that_died_is_asked_until_its_lease_has_ended(lease_ttl_s: float, seconds: float) -> None:
    assert tries_s(view(spec=replace(SPEC, lease_ttl_s=lease_ttl_s))) == seconds
    assert tries_s(view(spec=None)) == 30.0
