"""Exports a checkpoint to one plain file, as a command: `python -m elastic.train.export checkpoints model.pt`.

In a script, call `elastic.export`.
"""

import sys

from elastic.train.checkpoint.export import export, main

__all__ = ["export", "main"]

if __name__ == "__main__":
    sys.exit(main())
