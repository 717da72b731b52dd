"""Changes good input a little, knowing what it is made of: lines, JSON, words and bytes.

Random bytes are refused by the first look. A good document with one odd value gets as far as the code that uses it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        127,
        2**31,
        2**53,
        2**63,
        2**64,
        -(2**63) - 1,
        10**30,
        0.5,
        -0.0,
        1e308,
        1e-320,
    ),
    *(
        float("nan"),
        float("inf"),
        "",
        "a",
        "b",
        "0",
        "-1",
        "x" * 300,
        "\0",
        "\n",
        "\x1b[31m",
        "\u202e",
        "\ud800",
        "ä",
        "💥",
    ),
    *("../../etc/passwd", "$(reboot)", "{}", "%s", "a/b", "*", [], {}, [[]], [None], [0] * 50, {"": {}}, [[[[[]]]]]),
)
TEXTS = (
    b"\0",
    b"\xff\xfe",
    b"\n",
    b"\r",
    b"\x1b]0;x\x07",
    b",",
    b":",
    b"=",
    b"[",
    b"]",
    b"::1",
    b"%",
    b" ",
    b"-",
    b"1e999",
    b"NaN",
)
WORDS_MAX = 1 << 16


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """One of the seeds with one to four changes."""
    data = chance.choice(seeds)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        data = mutate(data, seeds, chance)
    return data


def mutate(data: bytes, seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """One change."""
    lines = data.split(b"\n")
    kind = chance.random()
    if kind < 0.12:
        return chance.choice(_LINES)(lines, seeds, chance)
    at = chance.randrange(len(lines))
    lines[at] = _json(lines[at], chance) if kind < 0.75 else _bytes(lines[at], chance)
    return b"\n".join(lines)


# --- lines --------------------------------------------------------------------------------------------------------


def _drop(lines: list[bytes], seeds: Sequence[bytes], chance: random.Random) -> bytes:
    del lines[chance.randrange(len(lines))]
    return b"\n".join(lines)


def _twice(lines: list[bytes], seeds: Sequence[bytes], chance: random.Random) -> bytes:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
    return b"\n".join(lines)


def _shuffle(lines: list[bytes], seeds: Sequence[bytes], chance: random.Random) -> bytes:
    chance.shuffle(lines)
    return b"\n".join(lines)


def _splice(lines: list[bytes], seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Lines of another seed, and beginnings of one before the end of another."""
    others = chance.choice(seeds).split(b"\n")
    at = chance.randrange(len(lines))
    other = chance.choice(others)
    head, tail = lines[at].partition(b" ")[0], other.partition(b" ")[2]
    lines[at] = other if chance.random() < 0.5 else head + b" " + tail
    return b"\n".join(lines)


_LINES: tuple[Callable[[list[bytes], Sequence[bytes], random.Random], bytes], ...] = (_drop, _twice, _shuffle, _splice)


# --- JSON ---------------------------------------------------------------------------------------------------------


def _json(line: bytes, chance: random.Random) -> bytes:
    """The line with something else in its JSON, if it has any; a word may stand before it."""
    starts = [at for at in (line.find(b"{"), line.find(b"[")) if at >= 0]
    if not starts:
        return _bytes(line, chance)
    head, text = line[: min(starts)], line[min(starts) :]
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return _bytes(line, chance)
    spots = _spots(tree)
    if not spots:
        return _bytes(line, chance)
    container, name = chance.choice(spots)
    match chance.randrange(8):
        case 0:
            del container[name]
        case 1 if isinstance(container, dict):
            container[chance.choice(("", "schema", "g", name + "x", "ä"))] = container.pop(name)
        case 2 if isinstance(container, list):
            container.insert(name, container[name])
        case 3 if isinstance(container, list):
            container *= chance.choice((2, 50))
        case 4:
            container[name] = chance.choice(spots)[0]
        case _:
            container[name] = _odd(container[name], chance)
    try:
        return head + json.dumps(tree, ensure_ascii=chance.random() < 0.7).encode(errors="surrogatepass")
    except (ValueError, RecursionError):  # It has become a part of itself.
        return head + b"[" * 2000


def _odd(value: Any, chance: random.Random) -> Any:
    """Something else in its place, often of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float() if chance.random() < 0.6:
            return chance.choice(
                (value + 1, value - 1, -value, value * 2, value + 0.5, 0, 1, 2, 65_535, 100_000, 2**31)
            )
        case str() if chance.random() < 0.6:
            return chance.choice(
                (value[:-1], value + "x", value * 3, value.upper(), value[::-1], value.replace("-", ""))
            )
    return chance.choice(ODD)


def _spots(tree: Any) -> list[tuple[Any, Any]]:
    """Every place inside a JSON value, as its container and its index or name."""
    if not isinstance(tree, dict | list):
        return []
    inner = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))
    return [(tree, name) for name, _ in inner] + [spot for _, each in inner for spot in _spots(each)]


# --- bytes --------------------------------------------------------------------------------------------------------


def _bytes(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return chance.choice(TEXTS)
    at = chance.randrange(len(data))
    match chance.randrange(7):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + 1 :]
        case 2:
            return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        case 3:
            return data[:at] + chance.choice(TEXTS) + data[at:]
        case 4:
            return (data[:at] + data[at:] * chance.choice((2, 3, 100)))[:WORDS_MAX]
        case 5:
            return data[:at] + chance.randbytes(chance.choice((1, 4, 64))) + data[at:]
    return data[:at] + str(chance.choice(ODD)).encode(errors="replace") + data[at:]
