"""Draws docs/pictures from docs/bench.

    python -m tests.bench.pictures [--results docs/bench] [--to docs/pictures]

What was measured is drawn by `PICTURES`, the demo that `python -m tests.bench.recording` recorded by `terminal`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench import results
from tests.bench.pictures.drawings import FOLDER, drawings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    parser.add_argument("--to", type=Path, default=FOLDER)
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    for name, drawing in drawings(args.results).items():
        (args.to / name).write_text(drawing)
        print(args.to / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
