"""Imports that cost less: what they make stays to the end of the process, so that nobody looks for garbage in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Import within it: the collector neither runs meanwhile nor sees later what is there at the end.

    It would go over a hundred thousand objects again and again, during the imports, while the agent runs, and once more
    at the end of the process: together a fifth of what a start costs. Frozen garbage is never freed, so this is for
    imports alone.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
