"""Extracts the prose that people read from Markdown and Python files, for lints of words.

Code is not prose. Code blocks are left out. Code spans, flags, environment variables, dotted names and file names are
replaced by `MASK`, character for character, so that positions stay. A string literal without white space is left out,
because it is a key, a stored value or a path.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "deploy/**/README.md")
MODULES: Final = ("elastic/**/*.py", "launcher/**/*.py")

MASK: Final = "¤"
_CODE: Final = re.compile(
    r"``?[^`]+``?"  # code spans
    r"|--\w[\w-]*"  # flags
    r"|\w*_\w*"  # identifiers and environment variables
    r"|\b\w+(?:[./]\w+)+"  # dotted names, file names and paths
)
_MARKDOWN: Final = MarkdownIt("commonmark").enable("table")


class Passage(NamedTuple):
    """A paragraph, heading, table cell, comment or string literal, with the line of the file at which it starts.

    `wraps` says whether a line break in `text` is a line break in the file.
    """

    path: str
    line: int
    text: str
    wraps: bool = True

    def line_at(self, offset: int) -> int:
        """Return the line of the file that has a character of the text; for an escaped literal, its first line."""
        return self.line + self.text.count("\n", 0, offset) if self.wraps else self.line


def of_project(root: Path = ROOT) -> Iterator[Passage]:
    """Yield every passage of the documentation and of the product code below `root`, sorted by path."""
    for readers, patterns in ((of_markdown, PAGES), (of_python, MODULES)):
        for path in sorted(set(chain.from_iterable(root.glob(pattern) for pattern in patterns))):
            yield from readers(path.relative_to(root).as_posix(), path.read_text())


def of_markdown(path: str, source: str) -> Iterator[Passage]:
    """Yield the paragraphs, headings and table cells of a page, code masked."""
    for block in _MARKDOWN.parse(source):
        if block.type == "inline" and block.map:
            yield Passage(path, block.map[0] + 1, masked("".join(map(_inline, block.children or ()))))


def _inline(part: Token) -> str:
    match part.type:
        case "text" | "image":
            return part.content
        case "softbreak" | "hardbreak":
            return "\n"
        case "code_inline":
            return MASK * len(part.content)
    return ""


def of_python(path: str, source: str) -> Iterator[Passage]:
    """Yield the comments, docstrings and other string literals of a module, code masked."""
    yield from _comments(path, source)
    for line, last_line, text in _literals(ast.parse(source)):
        if len(text.split()) > 1:
            yield Passage(path, line, masked(text), wraps=last_line - line == text.count("\n"))


def _comments(path: str, source: str) -> Iterator[Passage]:
    """Yield each comment; comments on consecutive lines, with no code before them, are one passage."""
    block: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        continues = block and line == first + len(block) and not token.line[:column].strip()
        if block and not continues:
            yield Passage(path, first, masked("\n".join(block)))
        if not continues:
            block, first = [], line
        block.append(token.string.lstrip("#! "))
    if block:
        yield Passage(path, first, masked("\n".join(block)))


def _literals(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Yield first line, last line and text of each string; the values in an f-string are masked, then visited."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.end_lineno or node.lineno, node.value
    if isinstance(node, ast.JoinedStr):
        pieces = [str(part.value) if isinstance(part, ast.Constant) else MASK for part in node.values]
        yield node.lineno, node.end_lineno or node.lineno, "".join(pieces)
        children: list[ast.AST] = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _literals(child)


def masked(text: str) -> str:
    """Replace code within a text by `MASK`; its length and line breaks stay."""
    return _CODE.sub(lambda code: re.sub(r"\S", MASK, code[0]), text)
