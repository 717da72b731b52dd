"""What every container of the cluster can have done to it, whatever runs in it."""

from __future__ import annotations

import tenacity
from docker.errors import APIError  # type: ignore[import-untyped, unused-ignore]
from docker.models.containers import Container  # type: ignore[import-untyped, unused-ignore]

PAUSE_TRIES = 20


def _not_frozen(error: BaseException) -> bool:
    return isinstance(error, APIError) and "unable to freeze" in str(error)


class Box:
    """One container."""

    container: Container

    def kill(self) -> None:
        """Power off: everything there is gone in one moment."""
        self.container.kill()
        self.container.wait()

    def start(self) -> None:
        """Power on, with its data and its first process."""
        self.container.start()

    @tenacity.retry(
        retry=tenacity.retry_if_exception(_not_frozen),
        stop=tenacity.stop_after_attempt(PAUSE_TRIES),
        wait=tenacity.wait_fixed(0.5),
        reraise=True,
    )
    def pause(self) -> None:
        """It stands still.

        With cgroup v1 runc gives up on a container that the kernel has not frozen after a thousand looks, as on a busy
        machine, and leaves it running: to ask again is up to the caller (opencontainers/runc#4388).
        """
        self.container.pause()

    def unpause(self) -> None:
        """It goes on."""
        self.container.unpause()
