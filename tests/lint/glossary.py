"""Finds retired words in the prose of the project: docs, messages, docstrings and comments.

    python -m tests.lint.glossary    print every use, with the words to write instead; exit with 1 if there is one

A new word may be listed in GLOSSARY only when no use of it is left.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.lint.prose import ROOT, Passage, of_project


class Retired(NamedTuple):
    """A word to avoid: its name, the pattern of its forms, and what to say instead.

    A space in the pattern matches a line break as well. Case is ignored.
    """

    name: str
    pattern: str
    instead: str

    def compiled(self) -> re.Pattern[str]:
        """Return the pattern as it is applied to passages."""
        return re.compile(self.pattern.replace(" ", r"\s+"), re.IGNORECASE)


GLOSSARY: Final = (
    # The field has a noun for it.
    Retired("brood", r"\bbroods?\b", "running generation, its workers"),
    Retired("card", r"\bcards?\b", "GPU; for a network card: NIC"),
    Retired("echo", r"\becho(?:es)?\b", "secondary failure"),
    Retired("errand", r"\berrands?\b", "store action"),
    Retired("first cause", r"\bfirst causes?\b|\bfirst to fail\b", "root cause"),
    Retired("first in line", r"\b(?:first|next) in line\b", "leader; for the next: successor"),
    Retired("folder", r"\bfolders?\b(?!\"?:|[=>])", "directory; the argument `folder=` stays"),
    Retired("hopeless", r"\bhopeless(?:ly)?\b", "unrecoverable, permanent"),
    Retired("kept out", r"\bke(?:ep|eps|pt|eping) out\b", "quarantined"),
    Retired("knock", r"\bknock(?:s|ed|ing)?\b", "probe, connect"),
    Retired("mend", r"\bmend(?:s|ed|ing|able)?\b", "fix; as a noun also: hint"),
    Retired("newcomer", r"\bnewcomers?\b", "joining node"),
    Retired(
        "node loss",
        r"\b(?:node|host|machine|member|peer)(?:'s|s')? loss(?:es)?\b"
        r"|\bloss(?:es)? of (?:an? |the |one |its |another |two )?(?:node|host|machine|member|peer)s?\b",
        "node failure; loss is the training loss",
    ),
    Retired("porter", r"\bporters?\b", "auth proxy"),
    Retired("proposer", r"\bproposers?\b", "leader"),
    Retired("right to run", r"\brights? to run\b", 'lease; "lease valid for 3.9 s"'),
    Retired("seat", r"\bseat(?:s|ed)?\b", "task; the place of one: slot"),
    Retired(
        "sign",
        r"\b(?:any|some|control|within a|\d+) signs?\b|\b(?:by|without) signs\b|\bsigns? of life\b",
        "character; sign of life: heartbeat",
    ),
    Retired("stranger", r"\bstrangers?\b", "unauthenticated client"),
    Retired("taken back", r"\bt(?:ake|akes|aken|aking|ook) back\b", "preempted, reclaimed; of a host: readmitted"),
    Retired("the go", r"\bthe go\b", "start signal"),
    Retired("trouble", r"\btroubles?\b", "problem, error"),
    # The verb or adverb is not the one that people use.
    Retired("all the same", r"\ball the same\b(?! secret)", "anyway"),
    Retired("anew", r"\banew\b", "again, from scratch; re-create, re-read"),
    Retired("at hand", r"\bat hand\b", "available"),
    Retired("borne", r"\b(?:bears|borne)\b", "tolerates, tolerated"),
    Retired("beside", r"\bbesides?\b", "next to, with; besides: also, in addition to"),
    Retired("by itself", r"\bby (?:it|him|them)sel(?:f|ves)\b", "automatically; on its own"),
    Retired("come together", r"\b(?:come|comes|came|coming) together\b", "form; rendezvous"),
    Retired("for ever", r"\bfor ever\b", "indefinitely, forever"),
    Retired("goes on", r"\b(?:go|goes|went|gone) on\b", "continues, resumes"),
    Retired("hears of", r"\bhear(?:s|d)? of\b", "is notified of, receives, detects"),
    Retired("in vain", r"\bin vain\b", "has no effect, without success"),
    Retired("is due", r"\b(?:is|are|was|were|be|been) due\b(?! to\b)", "is required, is expected; the time: deadline"),
    Retired("let go", r"\blet(?:s|ting)? go\b", "release, close"),
    Retired("made again", r"\b(?:made|done) again\b", "repeated; of a connection: re-established"),
    Retired("put right", r"\bput(?:s|ting)?(?: it| them| that| this)? right\b(?! after)", "correct, repair, restore"),
    Retired(
        "stands",
        r"\bst(?:ands?|ood)\b(?! (?:for|by|alone)\b|-)",
        "is, is stored in, is listed in; stands still: is stalled, is suspended",
    ),
    Retired("told", r"\b(?:un)?told\b", "reported, logged, printed, notified"),
    Retired("without a word", r"\bwithout a word\b", "silently, without deregistering"),
    # The sentence does not name its actor, or counts without a number.
    Retired("everybody", r"\b(?:every|some)body\b", "name the actor: all nodes, every rank, another process"),
    Retired("it is asked", r"\bit is (?:asked|looked|waited|said|told|tried)\b", "name the actor: the agent asks"),
    Retired("nobody", r"\bnobody\b", "name the actor: no node, no process, no client"),
    Retired(
        "so many",
        r"\bso (?:long|many|much|often)\b(?! (?:as|that)\b)",
        "the number, time or interval: 'seconds that …'",
    ),
    Retired(
        "who",
        r"(?:\A|(?<=[.;!?]\s))(?:who|whose|whom) \w+[^.;!?]*(?=[.;!]|\Z)",
        "an antecedent: a node that, clients that, the process that; or: if you",
    ),
    Retired("whoever", r"\bwhoever\b", "anyone who, a client that, the process that; or: if you"),
)
"""Do not list a word with a legitimate use, unless its pattern leaves that use out."""


class Use(NamedTuple):
    """Where a retired word is used, and the words around it."""

    path: str
    line: int
    context: str


def uses(word: Retired, passages: Iterable[Passage]) -> list[Use]:
    """Return every use of a word, in the order of the passages."""
    pattern = word.compiled()
    return [
        Use(
            passage.path,
            passage.line_at(span.start()),
            " ".join(passage.text[max(0, span.start() - 40) : span.start() + 60].split()),
        )
        for passage in passages
        for span in pattern.finditer(passage.text)
    ]


def main(root: Path = ROOT) -> int:
    """Print every use of a retired word; return the exit code."""
    passages = list(of_project(root))
    lines = [
        f"{use.path}:{use.line}: {word.name} (write: {word.instead}): {use.context}"
        for word in GLOSSARY
        for use in uses(word, passages)
    ]
    for line in sorted(lines):
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
