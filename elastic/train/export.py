"""`python -m elastic.train.export checkpoints model.pt`: one plain file from a checkpoint."""

import sys

from elastic.train.checkpoint.export import main

if __name__ == "__main__":
    sys.exit(main())
