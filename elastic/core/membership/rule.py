"""What a rule of `decide` is (pure).

A rule is a function that looks at a situation and either decides or leaves the decision to the next rule. Its name is
that of its `Reason`, in lower case. docs/development/rules.md is generated from the tables of rules and the first
docstring line of each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elastic.core.membership.decision import Decision
from elastic.core.membership.situation import Situation

Rule = Callable[[Situation], Decision | None]


def first_decision(rules: Sequence[Rule], s: Situation) -> tuple[Rule, Decision]:
    """Return the first rule that decides, and its decision. The last rule of a table always decides."""
    return next((rule, decision) for rule in rules if (decision := rule(s)) is not None)
