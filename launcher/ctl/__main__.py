"""`python -m launcher.ctl` is `elastic-ctl`."""

import sys

from launcher.ctl.cli import main

if __name__ == "__main__":
    sys.exit(main())
