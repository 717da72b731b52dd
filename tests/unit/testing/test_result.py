"""What `elastic.testing` reads of a replica that was killed at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from elastic.testing.result import Replica, read

if TYPE_CHECKING:
    from pathlib import Path


def test_a_replica_that_was_killed_while_it_wrote_has_the_records_that_were_whole(tmp_path: Path) -> None:
    files = tmp_path / "replica.0"
    (tmp_path / "replica.0.records").write_text('1\n{"step": 2}\n{"st')
    (tmp_path / ".0123456789abcdef.new").write_text("[1, 2")
    replica = Replica(0, "node-0")
    assert read(replica, str(files)) is None
    assert (replica.records, replica.value, replica.raised) == ([1, {"step": 2}], None, "")


def test_a_replica_that_returned_has_its_value(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "replica.0.value")
    replica = Replica(0, "node-0")
    assert read(replica, str(tmp_path / "replica.0")) is None
    assert replica.value == [1, 2]
