"""What a worker says of its script's imports: as much as one packet takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.channel.messages import (
    IMPORTS_BYTES_MAX,
    MODULES_MAX,
    OWN_FILES_MAX,
    PACKET_MAX,
    OwnFile,
    ScriptImport,
    ScriptImports,
    encode,
    said,
    script_imports,
)

names = st.one_of(st.text(max_size=12), st.text(min_size=190, max_size=210))
files = st.one_of(st.text(max_size=30), st.text(min_size=30).map(lambda text: text * 150))
changes = st.lists(names, max_size=110)


def modules(count: int, file: str = "/lib/m.py") -> list[ScriptImport]:
    return [ScriptImport(f"m{number}", file) for number in range(count)]


def own(count: int, file: str = "/home/me/m.py") -> list[OwnFile]:
    return [OwnFile(f"mine{number}", file) for number in range(count)]


@given(
    st.lists(st.builds(ScriptImport, names, files, changes.map(tuple)), max_size=310),
    changes,
    st.lists(st.builds(OwnFile, names, files), max_size=60),
)
def test_whatever_a_script_has_imported_the_message_can_be_sent_and_read(
    found: list[ScriptImport], changed: list[str], files: list[OwnFile]
) -> None:
    message = script_imports(found, changed, files)
    if message is not None:
        packet = encode(message)
        assert len(packet) <= IMPORTS_BYTES_MAX < PACKET_MAX
        assert said.decode(packet) == message
        assert message.modules == tuple(found[: len(message.modules)])
        assert message.own == tuple(files[: len(message.own)])
        assert message.changed == tuple(changed)


def test_what_fits_is_said_whole() -> None:
    assert script_imports(modules(9), ["A"], own(9)) == ScriptImports(tuple(modules(9)), ("A",), tuple(own(9)))


def test_modules_and_files_are_limited_in_number() -> None:
    message = script_imports(modules(MODULES_MAX + 1), [], own(OWN_FILES_MAX + 1, "/m"))
    assert message is not None
    assert (len(message.modules), len(message.own)) == (MODULES_MAX, OWN_FILES_MAX)


def test_files_make_room_for_modules() -> None:
    large = [ScriptImport(f"m{number}", "/" + "x" * 1000) for number in range(30)]
    message = script_imports(large, [], own(200, "/" + "x" * 1000))
    assert message is not None
    assert len(message.modules) == 30
    assert 10 < len(message.own) < 200


def test_modules_end_before_the_first_that_cannot_be_said() -> None:
    for wrong in (ScriptImport("m", "/lib/\udcff.py"), ScriptImport("x" * 201), ScriptImport("m", "", ("A",) * 101)):
        message = script_imports([*modules(2), wrong, *modules(2)], [], own(1))
        assert message == ScriptImports(tuple(modules(2)), (), tuple(own(1)))


@pytest.mark.parametrize("changed", [["A"] * 101, ["x" * 201], ["\udcff"]])
def test_where_the_changes_of_a_script_cannot_be_said_nothing_is(changed: list[str]) -> None:
    assert script_imports(modules(1), changed, own(1)) is None
