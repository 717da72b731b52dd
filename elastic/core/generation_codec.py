"""How a generation is written in the store: as few bytes for each member and worker as plain JSON allows (pure).

Every agent reads the whole document at every change, so its length is what a change costs a large job. The value
(`model.Generation`) says everything of every member; here is written only what cannot be known from the rest:

========= =============================================================================================================
members   one item each: "node" whose host is the node without its last 7 characters ("-3f2a6q"), both without `domain`;
          ["node"] the same with nothing left out; ["node", "host"] any other
domain    what the hosts of most members end with
ports     those of all members in one list; -3 means: three more, each by one higher than the one before it
masters   [M_id, port, ...] for each member that has any
seats     for each member: the letter of a role ("s", "h", "w"), then indexes, in runs as above, then the next role
since     for each member, left out if nobody has any
leaving   the M_ids of those who leave
before    generation, why, nodes, since. A node is its M_id, or its name if it is no member; runs as above
========= =============================================================================================================

What runs stand for is limited (`EXPANDED_MAX`), so that a short document cannot fill an agent's memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec

from elastic.core.model import (
    Amount,
    Budget,
    Cause,
    ChangeReason,
    Count,
    Generation,
    GenerationMember,
    Host,
    Number,
    Predecessor,
    Role,
)
from elastic.core.text import MARK_LENGTH

EXPANDED_MAX = 1_000_000
"""Ports, seats and nodes of the world before in one document: more than a document of the longest size needs."""
MARK: Final = 1 + MARK_LENGTH
"""Characters of a node's id after its host: a dash and the mark."""
ROLES: Final = {"s": Role.SERVER, "h": Role.HETER, "w": Role.WORKER}
"""How `tasks` writes them."""
LETTERS: Final = {role: letter for letter, role in ROLES.items()}

_Named = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=2)]


class _EncodedPredecessor(msgspec.Struct, frozen=True, array_like=True):
    g: Number
    why: ChangeReason
    nodes: tuple[int | str, ...]
    since: tuple[Amount, ...] = ()
    broken: bool = False


class _GenerationDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    g: Number
    run: Number
    tag: str
    why: ChangeReason
    reason: str
    slots: Count
    members: tuple[str | _Named, ...]
    domain: str = ""
    ports: tuple[int | str, ...] = ()
    masters: tuple[tuple[int, ...], ...] = ()
    tasks: tuple[tuple[int | str, ...], ...] = msgspec.field(default=(), name="seats")
    since: tuple[Amount, ...] = ()
    leaving: tuple[int, ...] = ()
    before: _EncodedPredecessor | None = None
    budget: Budget = Budget()
    rev: Amount = 0
    cause: Cause | None = None
    distrusted: tuple[Host, ...] = ()


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_GenerationDocument)


def write(generation: Generation) -> bytes:
    """The generation as its document. It reads back as the same value if its parts fit (`model.contradiction`)."""
    members = generation.members
    domain = _domain(members)
    since = tuple(place.since for place in members)
    tasks = tuple(_encoded_tasks(place) for place in members)
    return _ENCODER.encode(
        _GenerationDocument(
            g=generation.g,
            run=generation.run,
            tag=generation.tag,
            why=generation.why,
            reason=generation.reason,
            slots=generation.slots,
            members=tuple(_name(place, domain) for place in members),
            domain=domain,
            ports=tuple(_runs(port for place in members for port in place.ports)),
            masters=tuple((m_id, *place.masters) for m_id, place in enumerate(members) if place.masters),
            tasks=tasks if any(tasks) else (),
            since=since if any(since) else (),
            leaving=tuple(m_id for m_id, place in enumerate(members) if place.leaving),
            before=_before(generation.before, members),
            budget=generation.budget,
            rev=generation.rev,
            cause=generation.cause,
            distrusted=generation.distrusted,
        )
    )


def read(document: bytes) -> Generation:
    """The generation that a document stands for; an error of msgspec, or `ValueError`, says what does not fit."""
    it = _DECODER.decode(document)
    count = len(it.members)
    _limited(it)
    tasks = [_decoded_tasks(written) for written in it.tasks] or [()] * count
    if len(tasks) != count:
        raise ValueError(f"seats has {len(tasks)} items for {count} members")
    ports = _expanded(it.ports)  # Converted, and so checked, below.
    sizes = [len(tasks[m_id]) or it.slots for m_id in range(count)]
    if sum(sizes) != len(ports):
        raise ValueError(f"{sum(sizes)} ports are wanted, {len(ports)} are there")
    if it.since and len(it.since) != count:
        raise ValueError(f"since has {len(it.since)} items for {count} members")
    masters: dict[int, tuple[int, ...]] = {_m_id(held[0] if held else -1, count): held[1:] for held in it.masters}
    leaving = {_m_id(m_id, count) for m_id in it.leaving}
    places = []
    at = 0
    for m_id, (name, size) in enumerate(zip(it.members, sizes, strict=True)):
        node, host = _named(name, it.domain)
        since = it.since[m_id] if it.since else 0
        held = ports[at : at + size]
        places.append((node, host, masters.get(m_id, ()), held, tasks[m_id], since, m_id in leaving))
        at += size
    members = msgspec.convert(places, tuple[GenerationMember, ...])
    return Generation(
        g=it.g,
        run=it.run,
        tag=it.tag,
        why=it.why,
        reason=it.reason,
        members=members,
        slots=it.slots,
        before=_was(it.before, members),
        budget=it.budget,
        rev=it.rev,
        cause=it.cause,
        distrusted=it.distrusted,
    )


def _domain(members: Iterable[GenerationMember]) -> str:
    """What the hosts of most members end with, from their first dot on; "" if leaving it out saves nothing."""
    found = Counter(dot + rest for _, dot, rest in (place.host.partition(".") for place in members))
    domain, times = max(found.items(), key=lambda item: len(item[0]) * item[1], default=("", 0))
    return domain if len(domain) * times > 2 * (found.total() - times) + len('"domain":"",') + len(domain) else ""


def _name(place: GenerationMember, domain: str) -> str | tuple[str, ...]:
    if place.node[:-MARK] != place.host:
        return (place.node, place.host)
    if domain and not place.host.endswith(domain):
        return (place.node,)
    return place.host[: len(place.host) - len(domain)] + place.node[-MARK:]


def _named(name: str | tuple[str, ...], domain: str) -> tuple[str, str]:
    """Node and host."""
    if isinstance(name, str):
        host = name[:-MARK] + domain
        return host + name[-MARK:], host
    return (name[0], name[1]) if len(name) == 2 else (name[0], name[0][:-MARK])


def _before(before: Predecessor | None, members: Sequence[GenerationMember]) -> _EncodedPredecessor | None:
    if before is None:
        return None
    m_ids = {place.node: m_id for m_id, place in enumerate(members)}
    return _EncodedPredecessor(
        before.g, before.why, tuple(_runs(m_ids.get(node, node) for node in before.nodes)), before.since, before.broken
    )


def _was(before: _EncodedPredecessor | None, members: Sequence[GenerationMember]) -> Predecessor | None:
    if before is None:
        return None
    count = len(members)
    nodes = tuple(one if isinstance(one, str) else members[_m_id(one, count)].node for one in _expanded(before.nodes))
    return Predecessor(before.g, nodes, before.why, before.since, before.broken)


def _encoded_tasks(place: GenerationMember) -> tuple[int | str, ...]:
    """Its seats: a letter wherever the role changes, and indexes."""
    written: list[int | str] = []
    role = None
    for task in place.tasks:
        if task.role is not role:
            role = task.role
            written.append(LETTERS[role])
        written.append(task.index)
    return tuple(_runs(written))


def _decoded_tasks(written: tuple[int | str, ...]) -> tuple[tuple[Role, int], ...]:
    tasks: list[tuple[Role, int]] = []
    role = None
    for item in _expanded(written):
        if isinstance(item, str):
            if (role := ROLES.get(item)) is None:
                raise ValueError(f"no role is written {item!r}")
        elif role is None:
            raise ValueError("a seat without a role")
        else:
            tasks.append((role, item))
    return tuple(tasks)


def _runs(items: Iterable[int | str]) -> Iterator[int | str]:
    """Numbers that follow each other by one are written as the first, and minus how many more there are."""
    last: int | str = ""
    more = 0
    for item in items:
        if isinstance(item, int) and isinstance(last, int) and item == last + 1:
            more += 1
        else:
            if more:
                yield -more
                more = 0
            yield item
        last = item
    if more:
        yield -more


def _expanded(items: Iterable[int | str]) -> tuple[int | str, ...]:
    """What `_runs` was given."""
    expanded: list[int | str] = []
    for item in items:
        if isinstance(item, str) or item >= 0:
            expanded.append(item)
        elif expanded and isinstance(last := expanded[-1], int):
            expanded.extend(range(last + 1, last - item + 1))
        else:
            raise ValueError("a run that follows no number")
    return tuple(expanded)


def _limited(it: _GenerationDocument) -> None:
    """Refuse a document that stands for more than `EXPANDED_MAX` ports, seats and nodes."""
    lists: list[tuple[int | str, ...]] = [it.ports, *it.tasks]
    if it.before is not None:
        lists.append(it.before.nodes)
    total = sum(-item if isinstance(item, int) and item < 0 else 1 for items in lists for item in items)
    if total > EXPANDED_MAX:
        raise ValueError(f"it stands for {total} ports, seats and nodes; at most {EXPANDED_MAX}")


def _m_id(m_id: int, count: int) -> int:
    if not 0 <= m_id < count:
        raise ValueError(f"there is no member {m_id}")
    return m_id
