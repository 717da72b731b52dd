"""What a decoder of msgspec raises for bytes that are no document (pure).

Its own errors are not all: text that is not UTF-8 and arrays that are nested a thousand deep raise Python's.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""For an `except`."""
