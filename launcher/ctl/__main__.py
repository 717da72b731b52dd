"""`python -m launcher.ctl` is `elastic-ctl`."""

import sys

from launcher.entrypoints import ctl

if __name__ == "__main__":
    sys.exit(ctl())
