"""Every shell command and every piece of Python that the documents show, as values: nothing here runs anything.

A command stands in an indented or fenced block, or in backticks. A block is one of commands when its first line that
is no comment begins with a program of `PROGRAMS`, or when it is a transcript: there the lines after `$ ` are commands.
Every line of a block of commands counts, also one whose program is not known: who sorts them has to say what it is.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

OURS: Final = ("elastic-launch", "elastic-ctl")
PROGRAMS: Final = frozenset(
    {
        *OURS,
        *("torchrun", "horovodrun", "python", "python3", "pip", "pytest", "make", ".ci/run", "mkdir", "cp", "cd"),
        *("etcd", "etcdctl", "openssl", "export", "eval", "echo", "curl", "tail", "kill"),
        *("systemctl", "journalctl", "docker", "kubectl", "sbatch", "aws", "az", "gcloud", "promtool"),
        *("azure/store.sh", "gcp/store.sh", "gcp/nodes.sh", "deploy/compose/chaos.sh"),
    }
)
"""What a command begins with, after variables that are set for it, without the folder of an environment."""

MESSAGES: Final = ("etcd refuses ",)
"""What in prose begins as a command does, and is none."""
OF_AN_ENVIRONMENT: Final = re.compile(r"^(\.venv|/opt/elastic-launch)/bin/")
ASSIGNMENT: Final = re.compile(r"^[A-Za-z_]\w*=")
SYNOPSIS: Final = re.compile(r"\[--|\[flags\]|\[[A-Z]+\]|\w\|\w")
ENDS: Final = frozenset({"&&", "||", ";", "|", "&", "|&"})
REDIRECTS: Final = frozenset({">", "<", ">>"})


@dataclass(frozen=True, slots=True)
class Command:
    """One command line as it stands, and where; continued lines are joined."""

    page: str
    line: int
    text: str
    prose: bool = False
    shown: tuple[str, ...] = ()
    """What a transcript says that it printed."""

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """Its simple commands as words: without variables that are set for them, `sudo`, redirections and comments."""
        if self.synopsis:
            return (tuple(self.text.split()),)
        return tuple(_plain(words) for words in _simple(self.text))

    @property
    def synopsis(self) -> bool:
        """Whether it shows all that a command takes, with brackets around what may be left out."""
        return bool(SYNOPSIS.search(self.text)) and self.text.startswith(OURS)

    @property
    def fails(self) -> bool:
        """Whether the page shows that it ends with an error."""
        return any(": error: " in line for line in self.shown)

    def __str__(self) -> str:
        """The place and the text, for messages."""
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that stand together, indented or fenced, without their indentation."""

    page: str
    line: int
    lines: tuple[str, ...]
    language: str = ""


def pages() -> list[Path]:
    """The documents for people."""
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("README.md"))]


@functools.cache
def everything() -> tuple[Command, ...]:
    """Every command of every document."""
    return tuple(command for page in pages() for command in commands(str(page.relative_to(ROOT)), page.read_text()))


def commands(page: str, text: str) -> list[Command]:
    """The commands of one document, in their order."""
    found = [command for block in blocks(page, text) for command in _of_block(block)]
    return sorted([*found, *_in_prose(page, text)], key=lambda command: command.line)


def blocks(page: str, text: str) -> list[Block]:
    """What is indented by four or stands in a fence; an empty line ends an indented one, as far as it is not Python."""
    found: list[Block] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        first = at
        if lines[at].startswith("```"):
            at += 1
            while at < len(lines) and not lines[at].startswith("```"):
                at += 1
            found.append(Block(page, first + 2, tuple(lines[first + 1 : at]), lines[first].removeprefix("```").strip()))
        elif lines[at].startswith("    ") and (not at or not lines[at - 1].strip() or lines[at - 1].startswith("    ")):
            while at + 1 < len(lines) and lines[at + 1].startswith("    "):
                at += 1
            found.append(Block(page, first + 1, tuple(line[4:] for line in lines[first : at + 1])))
        at += 1
    return found


def python(page: str, text: str) -> list[Block]:
    """The pieces of Python: indented blocks that only empty lines part are one piece, when it can be read as one."""
    pieces: list[list[Block]] = []
    lines = text.splitlines()
    for block in blocks(page, text):
        before = pieces[-1][-1] if pieces else None
        between = lines[before.line - 1 + len(before.lines) : block.line - 1] if before else []
        apart = block.language or (before and before.language) or any(map(str.strip, between))
        if before and not apart and (not parses(before) or parses(_joined([*pieces[-1], block]))):
            pieces[-1].append(block)
        else:
            pieces.append([block])
    joined = [_joined(piece) for piece in pieces]
    return [piece for piece in joined if piece.language in ("", "python") and _is_python(piece)]


def _joined(piece: Sequence[Block]) -> Block:
    lines = list(piece[0].lines)
    for before, block in pairwise(piece):
        lines += [""] * (block.line - before.line - len(before.lines)) + list(block.lines)
    return Block(piece[0].page, piece[0].line, tuple(lines), piece[0].language)


def _is_python(block: Block) -> bool:
    """Tell whether a block is meant as Python: it is said to be, or it imports something or uses our package."""
    marks = re.compile(r"^(import|from) \w|^(for|with|if) .*:( *#.*)?$|^\w+ = (elastic|ps|flow)\.|elastic\.\w+\(")
    return block.language == "python" or any(marks.search(line) for line in block.lines if line[:1] not in "#$[=")


def readable(source: str) -> str:
    """The source where `…` stands for whatever one has there."""
    return source.replace("…", "...")


def parses(block: Block) -> bool:
    """Tell whether Python reads it."""
    try:
        ast.parse(readable("\n".join(block.lines)))
    except SyntaxError:
        return False
    return True


def _of_block(block: Block) -> Iterator[Command]:
    if block.language not in ("", "bash", "sh", "shell", "console"):
        return
    joined = list(_continued(block))
    if any(text.startswith("$ ") for _, text in joined):
        yield from _typed(block.page, joined)
        return
    written = [(line, text) for line, text in joined if text.strip() and not text.startswith("#")]
    if written and begins(written[0][1]):
        yield from (Command(block.page, line, text) for line, text in written)


def _typed(page: str, lines: Sequence[tuple[int, str]]) -> Iterator[Command]:
    """What was typed in a transcript, each with what came of it."""
    begun = [n for n, (_, text) in enumerate(lines) if text.startswith("$ ")]
    for n, end in zip(begun, [*begun[1:], len(lines)], strict=True):
        line, text = lines[n]
        yield Command(page, line, text[2:], shown=tuple(shown for _, shown in lines[n + 1 : end]))


def _continued(block: Block) -> Iterator[tuple[int, str]]:
    """Its lines with their numbers; a line that ends in a backslash, and further lines of a synopsis, are one."""
    whole, begun = "", 0
    for number, line in enumerate(block.lines, block.line):
        if whole and (whole.endswith("\\") or line.startswith("     ")):
            whole = f"{whole.removesuffix(chr(92)).rstrip()} {line.strip()}"
        else:
            if whole:
                yield begun, whole
            whole, begun = line.rstrip(), number
    if whole:
        yield begun, whole


def _in_prose(page: str, text: str) -> Iterator[Command]:
    indented = {block.line + n for block in blocks(page, text) for n in range(len(block.lines))}
    for number, line in enumerate(text.splitlines(), 1):
        if number in indented:
            continue
        for quoted in re.findall(r"`([^`]+)`", line):
            told = quoted.replace("\\|", "|")  # In a table.
            if " " in told and begins(told) and not told.startswith(MESSAGES):
                yield Command(page, number, told, prose=True)


def begins(text: str) -> bool:
    """Tell whether a line begins as a command does."""
    try:
        words = _plain(next(iter(_simple(text)), ()))
    except ValueError:  # A quotation mark that is none.
        return False
    return bool(words) and (words[0] in PROGRAMS or text.startswith("sudo "))


def _simple(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each simple command of a line."""
    text = re.sub(r"\$\([^()]*\)", "SUBSTITUTED", re.sub(r"\$\([^()]*\)", "SUBSTITUTED", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if word.startswith("#"):
            break
        if word in ENDS:
            yield tuple(words)
            words = []
        else:
            words.append(word)
    if words:
        yield tuple(words)


def _plain(words: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    rest = list(words)
    while rest and (ASSIGNMENT.match(rest[0]) or rest[0] == "sudo"):
        rest.pop(0)
    while rest:
        word = rest.pop(0)
        if word in REDIRECTS:
            rest = rest[1:]
        else:
            kept.append(word)
    return (OF_AN_ENVIRONMENT.sub("", kept[0]), *kept[1:]) if kept else ()
