"""What scripts import, on disk between jobs: what is read there holds, and whatever else lies there is no error."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic._decode import UNREADABLE
from elastic.channel.messages import OwnFile, ScriptImport, ScriptImports
from launcher.config.parse import parse
from launcher.nursery.preload import stamp
from launcher.workers import learned_cache
from launcher.workers.learned_cache import (
    BYTES_MAX,
    FILES_MAX,
    WHY_MAX,
    LearnedCache,
    LearnedImports,
    UnfitModule,
    cache_folder,
    command_key,
    read_list,
    write_list,
)
from tests.support.other_user import NOBODY, needs_root

CONFIG = parse(["--elastic-server", "10.0.0.5:2379", "--job-id", "j1", "train.py", "--lr", "1"], {})
KEY = "0" * 64


class Cache:
    """The cache of a user, the script and an installed module."""

    def __init__(self, base: Path) -> None:
        self.home, self.script, self.module = base / "home", base / "train.py", base / "m.py"
        self.home.mkdir(mode=0o700)
        self.script.write_text("import m")
        self.module.write_text("")
        self.folder = self.home / ".cache" / "elastic-launch" / "imports"
        self.path = self.folder / f"{KEY}.json"
        self.lines: list[str] = []

    @property
    def imports(self) -> ScriptImports:
        own = OwnFile("__main__", str(self.script))
        return ScriptImports((ScriptImport("m", str(self.module), ("A",)),), ("A",), (own,))

    @property
    def learned(self) -> LearnedImports:
        unfit = UnfitModule("m", "reads A", stamp(str(self.module)))
        return LearnedImports(self.imports, (stamp(str(self.script)),), (unfit,))

    def read(self) -> LearnedImports | None:
        return read_list(self.folder, KEY)

    def write(self) -> None:
        write_list(self.folder, KEY, self.learned)

    @property
    def asynchronous(self) -> LearnedCache:
        return LearnedCache(self.folder, KEY, self.lines.append)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_and_only_this_user_can_read_it(cache: Cache) -> None:
    assert cache.read() is None
    cache.write()
    assert cache.read() == cache.learned
    assert mode(cache.path) == 0o600
    assert mode(cache.folder) == mode(cache.folder.parent) == 0o700
    assert read_list(cache.folder, "1" * 64) is None


@pytest.mark.parametrize("change", [lambda path: path.write_text("import n, m"), Path.unlink, Path.touch])
def test_a_list_does_not_hold_when_a_file_of_the_user_has_changed(
    cache: Cache, change: Callable[[Path], object]
) -> None:
    cache.write()
    change(cache.script)
    assert cache.read() is None


def test_an_unfit_module_is_tried_again_when_its_file_has_changed(cache: Cache) -> None:
    cache.write()
    cache.module.write_text("another version")
    learned = cache.read()
    assert learned is not None
    assert (learned.imports, learned.unfit) == (cache.imports, ())


def test_the_lists_that_were_used_longest_ago_are_dropped(cache: Cache) -> None:
    for number in range(FILES_MAX + 2):
        write_list(cache.folder, f"{number:064}", cache.learned)
        os.utime(cache.folder / f"{number:064}.json", (number, number))
        if number == FILES_MAX - 1:
            assert read_list(cache.folder, f"{0:064}") is not None, "which marks it as used"
    left = sorted(int(path.stem) for path in cache.folder.iterdir())
    assert left == [0, *range(3, FILES_MAX + 2)]


def test_what_an_interrupted_write_left_is_deleted_after_a_while(cache: Cache) -> None:
    cache.write()
    old, new = cache.folder / ".1.new", cache.folder / ".2.new"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    cache.write()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_list_that_is_too_large_is_not_written(cache: Cache) -> None:
    large = msgspec.structs.replace(cache.learned, own=("x" * BYTES_MAX,))
    write_list(cache.folder, KEY, large)
    assert not cache.path.exists()


# --- the key --------------------------------------------------------------------------------------------------------


def test_another_command_python_or_folder_has_another_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        return [
            command_key(CONFIG, "/home/me", {}),
            command_key(CONFIG, "/home/you", {}),
            command_key(CONFIG, None, {}),
            command_key(CONFIG, "/home/me", {"PYTHONPATH": "/lib"}),
            command_key(replace(CONFIG, script="test.py"), "/home/me", {}),
            command_key(replace(CONFIG, script_args=("--lr", "2")), "/home/me", {}),
            command_key(replace(CONFIG, script="train", module=True), "/home/me", {}),
            command_key(replace(CONFIG, script="\udcff.py"), "/home/me", {}),
        ]

    found = keys()
    assert found == keys()
    monkeypatch.setattr("sys.executable", "/opt/python")
    assert len({*found, *keys()}) == 2 * len(found)
    assert all(len(key) == len(KEY) for key in found)


def test_the_folder_is_below_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder({}) == Path("/home/me/.cache/elastic-launch/imports")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/elastic-launch/imports")
    assert cache_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/elastic-launch/imports")


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, cache: Cache) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert cache_folder({}) is None

    async def run() -> None:
        without = LearnedCache(None, KEY, cache.lines.append)
        await without.write(cache.imports, {})
        assert await without.read() is None

    asyncio.run(run())
    assert cache.lines == []


# --- what may lie there -----------------------------------------------------------------------------------------------


def test_whatever_is_written_there_is_a_list_or_none(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.write()
    good = cache.path.read_bytes()
    hostile = [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, good[:-1], good + b"x", good.replace(b"own", b"o")]
    hostile += [good.replace(b'"m"', b'"' + b"m" * 201 + b'"'), good + b" " * BYTES_MAX]
    hostile += [msgspec.json.encode(msgspec.structs.replace(cache.learned, own=own)) for own in ((), ("\0:\0",), ("",))]
    hostile += [msgspec.json.encode({"imports": {}, "own": [[]], "unfit": 1})]
    for content in hostile:
        cache.path.write_bytes(content)
        assert cache.read() is None, content[:100]
    cache.path.write_bytes(good)
    assert cache.read() == cache.learned


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 40))
def test_a_damaged_list_is_no_error(data: bytes, at: int, length: int) -> None:
    good = msgspec.json.encode(LearnedImports(ScriptImports((ScriptImport("m", "/m"),)), ("1:/m",)))
    for content in (data, good[:at] + data + good[at + length :]):
        try:
            learned_cache._decoder.decode(content)
        except UNREADABLE:
            continue


def test_a_file_that_others_can_write_or_that_is_none_is_ignored(cache: Cache) -> None:
    cache.write()
    cache.path.chmod(0o620)
    assert cache.read() is None
    cache.path.unlink()
    os.mkfifo(cache.path)
    assert cache.read() is None
    cache.path.unlink()
    cache.path.mkdir()
    with pytest.raises(OSError):
        cache.write()
    cache.path.rmdir()
    target = cache.home / "target"
    cache.write()
    cache.path.rename(target)
    cache.path.symlink_to(target)
    with pytest.raises(OSError):
        cache.read()


@pytest.mark.parametrize("wrong", ["open", "link"])
def test_a_folder_that_others_can_write_or_that_is_a_link_is_ignored(cache: Cache, wrong: str) -> None:
    cache.write()
    content = cache.path.read_bytes()
    for folder in (cache.folder, cache.folder.parent):
        if wrong == "open":
            folder.chmod(0o770)
        else:
            folder.rename(cache.home / "elsewhere")
            folder.symlink_to(cache.home / "elsewhere")
        cache.path.write_bytes(b"")
        cache.write()
        assert cache.path.read_bytes() == b"", "nothing is written"
        cache.path.write_bytes(content)
        assert cache.read() is None
        if wrong == "open":
            folder.chmod(0o700)
        else:
            folder.unlink()
            (cache.home / "elsewhere").rename(folder)
        assert cache.read() == cache.learned


@needs_root
def test_what_belongs_to_another_user_is_ignored_and_nothing_is_made_in_his_home(cache: Cache) -> None:
    cache.write()
    for path in (cache.path, cache.folder, cache.folder.parent):
        os.chown(path, NOBODY, NOBODY)
        assert cache.read() is None
        os.chown(path, 0, 0)
    assert cache.read() == cache.learned
    other = cache.home / "other"
    other.mkdir(0o700)
    os.chown(other, NOBODY, NOBODY)
    write_list(other / ".cache" / "elastic-launch" / "imports", KEY, cache.learned)
    assert [*other.iterdir()] == []


# --- within the agent -----------------------------------------------------------------------------------------------


def test_the_files_of_the_user_count_as_they_were_when_the_list_came(cache: Cache) -> None:
    async def run() -> None:
        writer = cache.asynchronous
        await writer.write(cache.imports, {})
        cache.script.write_text("import n, m")
        await writer.write(cache.imports, {"m": "reads A", "another": "is not in the list"})
        assert await cache.asynchronous.read() is None
        await cache.asynchronous.write(cache.imports, {"m": "x" * 1000})
        learned = await cache.asynchronous.read()
        assert learned is not None
        assert [(unfit.name, len(unfit.why)) for unfit in learned.unfit] == [("m", WHY_MAX)]

    asyncio.run(run())
    assert cache.lines == []


def test_a_list_without_files_of_the_user_is_not_kept(cache: Cache) -> None:
    asyncio.run(cache.asynchronous.write(msgspec.structs.replace(cache.imports, own=()), {}))
    assert not cache.home.joinpath(".cache").exists()


def test_a_path_that_cannot_be_one_costs_a_line_of_detail(cache: Cache) -> None:
    own = OwnFile("__main__", "/\0")
    asyncio.run(cache.asynchronous.write(msgspec.structs.replace(cache.imports, own=(own,)), {}))
    assert len(cache.lines) == 1


def test_a_disk_that_fails_costs_a_line_of_detail(cache: Cache) -> None:
    cache.folder.parent.parent.mkdir()
    cache.folder.parent.write_text("a file")

    async def run() -> None:
        assert await cache.asynchronous.read() is None
        await cache.asynchronous.write(cache.imports, {})

    asyncio.run(run())
    assert cache.lines == [
        f"cannot read {cache.folder} (Not a directory); no list of imports is read from it",
        f"cannot write {cache.folder} (File exists); the list of imports is not stored",
    ]


def test_a_disk_that_does_not_answer_blocks_no_caller(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, written, begun = threading.Event(), list[ScriptImports](), threading.Event()

    def read(*_: object) -> None:
        answers.wait()

    def write(folder: Path, key: str, learned: LearnedImports) -> None:
        begun.set()
        answers.wait()
        written.append(learned.imports)

    monkeypatch.setattr(learned_cache, "read_list", read)
    monkeypatch.setattr(learned_cache, "write_list", write)
    second, third = (msgspec.structs.replace(cache.imports, changed=(name,)) for name in "BC")

    async def run() -> None:
        writer = cache.asynchronous
        assert await writer.read(limit_s=0.0) is None
        writing = asyncio.create_task(writer.write(cache.imports, {}))
        await asyncio.to_thread(begun.wait)
        await writer.write(second, {})
        await writer.write(third, {})
        answers.set()
        await writing

    asyncio.run(run())
    assert cache.lines == [f"{cache.folder} has not responded for 0 s; no list of imports is read from it"]
    assert written == [cache.imports, third], "of those that wait, only the newest is written"
