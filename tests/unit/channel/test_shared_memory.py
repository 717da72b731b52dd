"""Memory that outlives workers: who gets how much, and what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.channel.shared_memory import NAMES_MAX, SegmentRefused, Segments, within_cgroups

PAGE = 4096


@pytest.fixture
def segments() -> Iterator[Segments]:
    kept = Segments(100 * PAGE)
    yield kept
    kept.drop_all()


def test_a_segment_is_there_again_under_its_name_with_what_was_written(segments: Segments) -> None:
    fd, size = segments.want("a", PAGE)
    os.pwrite(fd, b"step 7", 0)
    assert segments.want("a", PAGE) == (fd, size)
    assert segments.want("a", 0) == (fd, PAGE)
    assert os.pread(segments.want("a", 0)[0], 6, 0) == b"step 7"


def test_size_0_asks_only_for_what_is_there(segments: Segments) -> None:
    with pytest.raises(SegmentRefused, match="it does not exist"):
        segments.want("a", 0)
    assert segments.names == ()


def test_a_segment_of_another_size_is_replaced_by_an_empty_one(segments: Segments) -> None:
    fd, _ = segments.want("a", PAGE)
    os.pwrite(fd, b"old", 0)
    fd, size = segments.want("a", 2 * PAGE)
    assert (size, os.fstat(fd).st_size) == (2 * PAGE, 2 * PAGE)
    assert os.pread(fd, 3, 0) == bytes(3)
    assert segments.total_bytes == 2 * PAGE


def test_all_segments_together_have_a_limit_and_the_refusal_names_both_numbers_and_the_flag() -> None:
    kept = Segments(8 * 10**9)
    kept.want("a", 6 * 10**9)
    words = r"in-memory checkpoints need 12\.3 GB on this node, 8\.0 GB is allowed \(--memory-limit\)"
    with pytest.raises(SegmentRefused, match=words):
        kept.want("b", 63 * 10**8)
    assert kept.names == ("a",)
    kept.want("a", 8 * 10**9)  # What is replaced does not count.
    kept.drop_all()


def test_the_limit_is_half_of_what_is_available_at_the_first_request() -> None:
    said = [100 * PAGE, 0]
    kept = Segments(available=lambda: said.pop(0))
    kept.want("a", 40 * PAGE)
    kept.want("b", 10 * PAGE)
    with pytest.raises(SegmentRefused):
        kept.want("c", PAGE)
    kept.drop_all()


def test_a_size_that_no_machine_has_is_refused_and_keeps_nothing() -> None:
    kept = Segments(1 << 80)
    with pytest.raises(SegmentRefused, match="cannot allocate"):
        kept.want("a", 1 << 63)
    assert kept.names == ()


def test_so_many_names_and_no_more(segments: Segments) -> None:
    for number in range(NAMES_MAX):
        segments._kept[str(number)] = (os.open(os.devnull, os.O_RDONLY), 1)
    with pytest.raises(SegmentRefused, match=str(NAMES_MAX)):
        segments.want("one more", 1)
    assert segments.want("7", PAGE)[1] == PAGE, "one that is there may become larger"


def test_a_segment_can_neither_grow_nor_shrink(segments: Segments) -> None:
    fd, _ = segments.want("a", PAGE)
    for size in (0, 2 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)


def test_dropped_segments_are_closed_and_forgotten(segments: Segments) -> None:
    fd, _ = segments.want("a", PAGE)
    segments.drop_all()
    assert (segments.names, segments.total_bytes) == ((), 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# --- what is available --------------------------------------------------------------------------------------------


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def available(folder: Path, cgroup: str, files: dict[str, str]) -> int:
    written(folder, {"cgroup": cgroup})
    return within_cgroups(100 << 10, folder / "cgroup", written(folder / "fs", files))


def test_without_a_container_the_machines_memory_counts(tmp_path: Path) -> None:
    assert available(tmp_path, "0::/user.slice\n", {"user.slice/memory.max": "max\n"}) == 100 << 10


def test_a_containers_limit_counts_without_what_it_uses_but_with_its_cache(tmp_path: Path) -> None:
    files = {"memory.max": "50000\n", "memory.current": "30000\n", "memory.stat": "anon 7\ninactive_file 10000\n"}
    assert available(tmp_path, "0::/\n", files) == 30000


def test_the_limit_of_a_cgroup_further_out_counts_too(tmp_path: Path) -> None:
    files = {"a/memory.max": "9000\n", "a/b/memory.max": "max\n", "a/memory.current": "1000\n"}
    files["a/memory.stat"] = "inactive_file 0\n"
    assert available(tmp_path, "0::/a/b\n", files) == 8000


def test_an_old_cgroups_limit_counts_also_where_its_path_is_of_another_namespace(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "20000\n",
        "memory/memory.usage_in_bytes": "5000\n",
        "memory/memory.stat": "total_inactive_file 1000\n",
    }
    assert available(tmp_path, "4:cpu,memory:/docker/abc\n2:cpu:/x\n", files) == 16000


def test_a_container_that_uses_all_has_nothing_left(tmp_path: Path) -> None:
    files = {"memory.max": "5\n", "memory.current": "9\n", "memory.stat": "inactive_file 1\n"}
    assert available(tmp_path, "0::/\n", files) == 0
