from __future__ import annotations

from pathlib import Path

from launcher.nursery import library_state


def test_a_fork_server_finds_both_packages_of_a_checkout_that_is_not_installed() -> None:
    home = Path(library_state.home())
    assert all((home / package / "__init__.py").is_file() for package in ("elastic", "launcher"))
