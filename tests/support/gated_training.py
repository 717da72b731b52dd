"""An example in a script that waits at two steps, so that what a story needs comes before the training's end.

No step is slow: a world of `HELD` waits for a lock that the story holds, however long an agent takes to start.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path

HELD = {3: 120, 2: 200}
"""Where each size of the world waits: before it commits this step. A later world of three is past its own."""

SCRIPT = """
import fcntl, os, runpy, sys  # torch is the example's.
import elastic

gate, held = sys.argv.pop(1), {held}
commit = elastic.State.commit

def wait_and_commit(state, **how):
    if state.step + 1 == held.get(int(os.environ["WORLD_SIZE"])):
        with open(gate) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    commit(state, **how)

elastic.State.commit = wait_and_commit
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
"""


class Gate:
    """What the steps wait for, and the words that start the script."""

    def __init__(self, folder: Path, module: str, held: Mapping[int, int]) -> None:
        self._path = folder / "gate"
        self._script = folder / "held.py"
        self._script.write_text(SCRIPT.format(held=dict(held), module=module))
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    @property
    def words(self) -> tuple[str, ...]:
        """The script and its first word; the example's own come after them."""
        return str(self._script), str(self._path)

    def open(self) -> None:
        """No step waits from now on."""
        self._file.close()


@contextlib.contextmanager
def gate(folder: Path, module: str = "elastic.examples.digits", held: Mapping[int, int] = HELD) -> Iterator[Gate]:
    """A gate that is shut at first, and open after the block; `held` as `HELD`."""
    made = Gate(folder, module, held)
    try:
        yield made
    finally:
        made.open()
