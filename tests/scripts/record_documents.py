"""Record the documents of the current minor release: `python -m tests.scripts.record_documents`.

It writes what is missing in the release's directory, and never overwrites a recorded file.
"""

import sys
from pathlib import Path

from tests.support.recorded_documents import CURRENT, files, write_checkpoints


def main(release: Path) -> int:
    checkpoints = release / "checkpoint"
    missing = {name: content for name, content in files().items() if not (release / name).exists()}
    if not missing and checkpoints.exists():
        print(f"{release} is complete; recorded files are never overwritten", file=sys.stderr)
        return 1
    for name, content in missing.items():
        (release / name).parent.mkdir(parents=True, exist_ok=True)
        (release / name).write_bytes(content)
    if not checkpoints.exists():
        write_checkpoints(checkpoints)
    print(f"{release}: recorded {len(missing)} documents")
    return 0


if __name__ == "__main__":
    sys.exit(main(CURRENT))
