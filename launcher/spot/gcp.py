"""Google Compute Engine's preemption and maintenance notices (pure).

Both are hanging requests: the server answers when the value changes, or after a minute. The first one does not hang, so
that a notice that is there already is seen at once; the others name the etag of the answer before, so that no change
between two requests is missed. An answer without `Metadata-Flavor: Google` is not from the metadata server.

A spot machine has about 30 s after `preempted` is TRUE. A maintenance event is announced 60 s before, or earlier for
machines with cards. Sources: Compute Engine documentation, "Create and use Spot VMs", "Query metadata server for
maintenance event notices", "About VM metadata".
"""

from __future__ import annotations

from typing import Final

from launcher.spot.exchange import TOKEN, Answer, Ask, Heard, Notice, Remark, pause

HANGS_S = 60
"""A hanging request is answered after this time, whatever there is."""
ANSWERED_S = HANGS_S + 10.0
PAUSE_S = 1.0
"""Between two requests, so that a server that does not hang is not asked without end."""
TROUBLE_MAX_S = 5.0
"""A preemption leaves 30 s: a server that does not answer is asked again soon."""
BASE: Final = "/computeMetadata/v1/instance"
PREEMPTED_S = 30.0
MAINTENANCE_S = 60.0


class _Value:
    """One value, followed by hanging requests."""

    PATH = ""

    def __init__(self) -> None:
        self._etag = ""
        self._failures = 0

    def ask(self) -> Ask:
        """The value as it is, or its next change."""
        headers = {"Metadata-Flavor": "Google"}
        if not self._etag:
            return Ask(f"{BASE}/{self.PATH}", headers)
        query = f"wait_for_change=true&timeout_sec={HANGS_S}&last_etag={self._etag}"
        return Ask(f"{BASE}/{self.PATH}?{query}", headers, timeout_s=ANSWERED_S)

    def hear(self, answer: Answer | None, now: float) -> Heard:
        """A value; anything else is trouble."""
        if answer is None:
            return self._failed("it does not answer")
        if answer.headers.get("metadata-flavor") != "Google":
            return self._failed("it is not Google's")
        if answer.status != 200:
            return self._failed(f"it answers with {answer.status}")
        self._failures = 0
        etag = answer.headers.get("etag", "")
        self._etag = etag if TOKEN.fullmatch(etag) and etag.isalnum() else ""
        found = self.read(answer, now)
        clear = not any(isinstance(one, Notice) for one in found)
        return Heard(found, PAUSE_S if self._etag else TROUBLE_MAX_S, clear=clear)

    def read(self, answer: Answer, now: float) -> tuple[Notice | Remark, ...]:
        """What the value means."""
        raise NotImplementedError

    def _failed(self, trouble: str) -> Heard:
        self._failures += 1
        self._etag = ""
        return Heard((), pause(self._failures, TROUBLE_MAX_S), trouble)


class Preempted(_Value):
    """Whether this machine is being taken back."""

    PATH = "preempted"

    def read(self, answer: Answer, now: float) -> tuple[Notice | Remark, ...]:
        """TRUE or FALSE."""
        if answer.text != "TRUE":
            return ()
        return (Notice("Google Cloud takes this machine back", now + PREEMPTED_S, PREEMPTED_S),)


class Maintenance(_Value):
    """What Google is about to do with the host of this machine."""

    PATH = "maintenance-event"

    def read(self, answer: Answer, now: float) -> tuple[Notice | Remark, ...]:
        """NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE."""
        if answer.text.startswith("MIGRATE"):
            return (Remark("Google Cloud moves this machine to another host (live migration); training goes on"),)
        if answer.text.startswith("TERMINATE"):
            text = "Google Cloud stops this machine for maintenance"
            return (Notice(text, now + MAINTENANCE_S, MAINTENANCE_S),)
        return ()
