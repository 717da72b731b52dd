"""How one rule of the core is broken, by its name, in the process that runs seeds with it.

A mutation changes functions, tables or constants of modules that are imported already. A function is changed in place:
whoever has imported it calls what has become of it. So a process breaks one rule, once, and ends.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from types import FunctionType
from typing import Any, NamedTuple

from elastic.core import decide
from elastic.core.agent import table
from elastic.core.kv import Compare, Operation
from elastic.core.transactions import Transaction
from tests.sim.many import one, settle_memory

MUTATED = ("elastic.core", "launcher.peers.doubt", "launcher.peers.silence_detector")
"""Modules in which a constant may have another value."""

Change = Callable[[], None]


class Mutation(NamedTuple):
    """`change` breaks a rule; `breaks` says which."""

    name: str
    breaks: str
    change: Change


class Found(NamedTuple):
    """The seed that found a mutation, and what it says; None if no seed did, of so many."""

    name: str
    seed: int | None
    said: str
    tried: int


def becomes(target: object, mutant: Callable[..., Any]) -> Change:
    """A function, method or property becomes `mutant`, which is called with the original and the arguments."""

    def change() -> None:
        function = _function(target)
        original = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        name = f"_mutant_of_{function.__name__}"
        function.__globals__[name] = lambda *args, **kwargs: mutant(original, *args, **kwargs)
        call = eval(f"lambda *args, **kwargs: {name}(*args, **kwargs)")
        function.__code__ = call.__code__

    return change


def gives(target: object, value: object) -> Change:
    """A function or property gives this value, whatever it is asked."""
    return becomes(target, lambda _, *args, **kwargs: value)


def never(rule: object) -> Change:
    """A rule decides nothing: it is taken out of its tables."""
    return gives(rule, None)


def constant(module: Any, name: str, value: object) -> Change:
    """A constant has another value, in every module that has imported it."""

    def change() -> None:
        old = getattr(module, name)
        for known, other in list(sys.modules.items()):
            if known.startswith(MUTATED) and getattr(other, name, None) is old:
                setattr(other, name, value)

    return change


def swapped(first: Callable[..., object], second: Callable[..., object]) -> Change:
    """Two rules of `decide` have each other's place in their tables."""

    def change() -> None:
        other = {first: second, second: first}
        for stages in decide.RULES.values():
            for stage, rules in list(stages.items()):
                if first in rules and second in rules:
                    stages[stage] = tuple(other.get(rule, rule) for rule in rules)  # type: ignore[index]

    return change


def row_out(name: str) -> Change:
    """A row of the agent's table is never taken."""

    def change() -> None:
        for phase, rows in table.ROWS.items():
            table.ROWS[phase] = tuple(row for row in rows if row.name != name)

    return change


def duty_out(name: str) -> Change:
    """A duty of the agent is never done."""

    def change() -> None:
        for duties in ("REPORTS", "DUTIES"):
            constant(table, duties, tuple(duty for duty in getattr(table, duties) if duty.name != name))()

    return change


def compare_out(function: object, dropped: Callable[[Compare], bool]) -> Change:
    """The transactions that a function makes lack some compares."""

    def without(original: Callable[..., Transaction], *args: Any, **kwargs: Any) -> Transaction:
        made = original(*args, **kwargs)
        return dataclasses.replace(made, compares=tuple(compare for compare in made.compares if not dropped(compare)))

    return becomes(function, without)


def operation_out(function: object, dropped: Callable[[Operation], bool]) -> Change:
    """The transactions that a function makes lack some operations."""

    def without(original: Callable[..., Transaction], *args: Any, **kwargs: Any) -> Transaction:
        made = original(*args, **kwargs)
        return dataclasses.replace(made, then=tuple(step for step in made.then if not dropped(step)))

    return becomes(function, without)


def _function(target: object) -> FunctionType:
    if isinstance(target, cached_property):
        target = target.func
    if isinstance(target, property):
        target = target.fget
    if not isinstance(target, FunctionType):
        raise TypeError(f"{target!r} is no function")
    return target


def find(mutation: Mutation, seeds: Iterable[int]) -> Found:
    """Run seeds with this mutation until one breaks a guarantee, or the core raises. Once in the life of a process."""
    mutation.change()
    settle_memory()
    tried = 0
    for seed in seeds:
        tried += 1
        if violation := one(seed).violation:
            return Found(mutation.name, seed, violation, tried)
    return Found(mutation.name, None, "", tried)
