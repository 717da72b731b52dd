"""The exceptions that a msgspec decoder raises for invalid bytes (pure).

In addition to msgspec's own errors, it raises Python's for text that is not UTF-8 and for deeply nested arrays.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The exceptions to catch around `decode`."""
