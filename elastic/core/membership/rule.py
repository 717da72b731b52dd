"""What a rule of `decide` is (pure).

A rule is a function that looks at a situation and decides, or leaves that to the rule after it. It has the name of its
`Reason`, in lower case. The first line of its docstring is its sentence; the page of rules in docs/architecture.md is
made from the tables of rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elastic.core.membership.decision import Decision
from elastic.core.membership.situation import Situation

Rule = Callable[[Situation], Decision | None]


def first_decision(rules: Sequence[Rule], s: Situation) -> tuple[Rule, Decision]:
    """The first rule that decides, and what it decides. The last rule of a table always does."""
    return next((rule, decision) for rule in rules if (decision := rule(s)) is not None)
