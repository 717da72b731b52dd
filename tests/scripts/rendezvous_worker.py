"""A worker that does what its command line says, one word after the other, to meet the others of its world."""

from __future__ import annotations

import sys

import elastic


def main() -> None:
    for word in sys.argv[1:]:
        name, _, text = word.partition("=")
        if name == "wait":
            sys.stdin.readline()
        elif name == "preparing":
            elastic.preparing(text)
        elif name == "ready":
            elastic.ready()
        elif name == "init":
            context = elastic.init(timeout_s=float(text) if text else None)
            print(context.rank, context.world_size, flush=True)
        elif name == "report":
            elastic.report(int(text), loss=0.5)


if __name__ == "__main__":
    main()
