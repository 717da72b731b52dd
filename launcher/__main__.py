"""`python -m launcher` is `elastic-launch`."""

import sys

from launcher.entrypoints import launch

if __name__ == "__main__":
    sys.exit(launch())
