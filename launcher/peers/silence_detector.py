"""Detects silent nodes: nothing was heard from them for longer than their timeout (pure).

The timeout of a node is the silence timeout, at least `BEATS_MIN` of its intervals, plus the recent lateness of its
link. Only a link that has carried `BEATS_MIN` heartbeats counts. A node whose link is lost stays silent; a node whose
link is closed with a goodbye is forgotten. Times are seconds of this node's clock, which continues while the host is
suspended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastic.core.agent.links.silence import BEATS_MIN
from elastic.core.agent.state import SilentPeer

NEVER = float("-inf")
LATENESS_HALF_S = 20.0
"""Half-life of the lateness of a link."""
UNHEARD_INTERVALS = 2
"""A node that was not heard for more intervals than this may be about to become silent."""


@dataclass(slots=True)
class _Peer:
    """One node that should send heartbeats.

    `since`: when it was last heard, or when its silence was restarted after that.
    """

    link: object
    every_s: float
    heard_at: float
    since: float
    beat_at: float
    beats: int = 1
    late_s: float = 0.0

    def lateness(self, now: float) -> float:
        """Return how much later than usual a heartbeat may come."""
        return self.late_s * math.exp2((self.beat_at - now) / LATENESS_HALF_S)


class SilenceDetector:
    """The nodes that send heartbeats, and those of them that are silent."""

    def __init__(self, heard_otherwise_at: Callable[[str], float] = lambda _: NEVER) -> None:
        """Take `heard_otherwise_at(node)`, which returns when other evidence last showed that a node is alive."""
        self._heard_otherwise_at = heard_otherwise_at
        self._peers: dict[str, _Peer] = {}
        self._timeout_s = 0.0
        self._checked_by = float("inf")
        self.held_up_at = NEVER
        """When this process continued after it had been suspended."""
        self.silent: Mapping[str, SilentPeer] = {}

    def set_timeout(self, seconds: float) -> None:
        """Set the silence timeout; 0.0: no node is silent."""
        self._timeout_s = seconds
        if not seconds:
            self.silent = {}

    def expect_check(self, at: float, slack_s: float) -> None:
        """Expect `check` at this time; a call more than `slack_s` later shows that this process was suspended."""
        self._checked_by = at + slack_s

    def expect_beats(self, node: str, link: object, every_s: float, now: float) -> None:
        """Expect heartbeats over a link from now on; they may be the first of this node."""
        if node not in self._peers:
            self._peers[node] = _Peer(link, every_s, now, now, now, beats=0)

    def beat(self, node: str, link: object, every_s: float, now: float) -> bool:
        """Record a heartbeat that arrived over a link; return whether `silent` has changed."""
        changed = self.notice_held_up(now)
        peer = self._peers.get(node)
        if peer is None or peer.link is not link or not peer.beats:
            self._peers[node] = _Peer(link, every_s, now, now, now)
        else:
            # A pause that was longer than the timeout was an outage: it counts as a lateness of one timeout.
            lateness_s = min(max(now - peer.beat_at - peer.every_s, 0.0), self._timeout_s)
            peer.late_s = max(lateness_s, peer.lateness(now))
            peer.every_s, peer.beat_at, peer.beats = every_s, now, peer.beats + 1
        return self.heard(node, now) or changed

    def heard(self, node: str, now: float) -> bool:
        """Record any other message of a node; return whether `silent` has changed."""
        changed = self.notice_held_up(now)
        if (peer := self._peers.get(node)) is not None:
            peer.heard_at = peer.since = now
        if node not in self.silent:
            return changed
        self.silent = {name: one for name, one in self.silent.items() if name != node}
        return True

    def forget(self, node: str, link: object | None = None) -> bool:
        """Forget a node whose link, or any link, was closed with a goodbye; return whether `silent` has changed."""
        peer = self._peers.get(node)
        if peer is None or link not in (None, peer.link):
            return False
        del self._peers[node]
        before = self.silent
        self.silent = {name: one for name, one in before.items() if name != node}
        return len(before) != len(self.silent)

    def check(self, now: float) -> tuple[bool, float]:
        """Update `silent`; return whether it has changed, and when the next node may become silent."""
        changed, next_at, silent = self.notice_held_up(now), float("inf"), dict[str, SilentPeer]()
        if not self._timeout_s:
            return changed, next_at
        for node, peer in self._peers.items():
            if peer.beats < BEATS_MIN:
                continue
            known = self.silent.get(node)
            since = peer.since
            timeout_s = max(self._timeout_s, BEATS_MIN * peer.every_s) + peer.lateness(since)
            if now >= since + timeout_s:
                since = max(since, self._heard_otherwise_at(node))
            if now < since + timeout_s:
                next_at = min(next_at, since + timeout_s)
            else:
                same = known is not None and known.since == since
                silent[node] = known if known is not None and same else SilentPeer(since, timeout_s, peer.heard_at)
        changed = changed or silent != self.silent
        self.silent = silent
        return changed, next_at

    def unheard(self, now: float) -> frozenset[str]:
        """Return the nodes that were not heard for some intervals."""
        return frozenset(
            node for node, peer in self._peers.items() if now > peer.since + UNHEARD_INTERVALS * peer.every_s
        )

    def notice_held_up(self, now: float) -> bool:
        """Restart the silence of every node if this process was suspended, and return whether it was.

        The messages of that time may still wait in its sockets.
        """
        if now <= self._checked_by:
            return False
        self._checked_by = float("inf")
        self.held_up_at = now
        for peer in self._peers.values():
            peer.since = peer.beat_at = now
        self.silent = {}
        return True
