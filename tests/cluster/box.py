"""What every container of the cluster can have done to it, whatever runs in it."""

from __future__ import annotations

from docker.models.containers import Container  # type: ignore[import-untyped, unused-ignore]


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

    def pause(self) -> None:
        """It stands still."""
        self.container.pause()

    def unpause(self) -> None:
        """It goes on."""
        self.container.unpause()
