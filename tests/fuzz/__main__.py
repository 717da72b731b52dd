"""Bad input for as long as one likes, guided by coverage.

    python -m tests.fuzz                                    which targets there are
    python -m tests.fuzz TARGET --seconds N [--corpus DIR]  one of them; "all" gives each N seconds, one after the other

It needs atheris (`pip install -e '.[fuzz]'`; Python 3.11 on Linux). Inputs that reached something new are kept in the
corpus, and are where the next run begins. An input that breaks a promise is printed with its stack and kept as
crash-* in the corpus: fix what it found, and move it to tests/fuzz/found/<target>/, where every test run takes it.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.target import NAMES, load

MUTATIONS_MAX = 3
INPUT_BYTES_MAX = 1 << 16
INPUT_S_MAX = 20
MEMORY_MB_MAX = 4096
SHORT_RUN_S = 30
"""What one input may take before libFuzzer calls it a hang, and before the process ends for its memory."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="")
    parser.add_argument("--seconds", type=int, default=SHORT_RUN_S)
    parser.add_argument("--corpus", type=Path)
    args = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install -e '.[fuzz]' (Python 3.11 on Linux)", file=sys.stderr)
        return 2
    if args.target == "all":
        return max([_one(name, args.seconds, args.corpus) for name in NAMES])
    if args.target not in NAMES:
        print("\n".join(NAMES) if not args.target else f"there is no target {args.target}", file=sys.stderr)
        return 0 if not args.target else 2
    with atheris.instrument_imports(include=["elastic", "launcher"]):
        target = load(args.target)
    with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as scratch:
        corpus = args.corpus or Path(scratch)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate((*target.seeds, *target.found)):
            (corpus / f"seed-{number}").write_bytes(seed)
        _fuzz(atheris, target.run, target.seeds, args.seconds, corpus)
    return 0


def _fuzz(atheris: Any, run: Callable[[bytes], None], seeds: tuple[bytes, ...], seconds: int, corpus: Path) -> None:
    """Hand over to libFuzzer, which ends the process. Half of its mutations are ours, the others its own."""
    from tests.fuzz.mutate import mutate

    def change(data: bytes, size_max: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, size_max))
        for _ in range(chance.randint(1, MUTATIONS_MAX)):
            data = mutate(data, seeds, chance)
        return data[:size_max]

    options = (
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_S_MAX}",
        f"-rss_limit_mb={MEMORY_MB_MAX}",
        f"-artifact_prefix={corpus}/",
        "-print_final_stats=1",
    )
    atheris.Setup([sys.argv[0], *options, str(corpus)], run, custom_mutator=change)
    atheris.Fuzz()


def _one(name: str, seconds: int, corpus: Path | None) -> int:
    """A process for each target: libFuzzer ends it."""
    where = () if corpus is None else ("--corpus", str(corpus / name.replace(" ", "-")))
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(seconds), *where]
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
    print(f"{name}: {runs} inputs, {'ok' if not done.returncode else 'BROKEN'}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:] + done.stderr[-4000:], flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
