"""Show what elastic-launch does, on this machine alone: `python -m elastic.examples.demo`.

The demo itself belongs to the launcher; this library does not import it.
"""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "launcher.local.demo", *sys.argv[1:]])
