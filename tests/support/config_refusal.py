"""How a wrong command line is answered."""

from __future__ import annotations

import pytest

from elastic.errors import ConfigError
from launcher.config.parse import parse


def refusal(*argv: str, environ: dict[str, str] | None = None) -> str:
    """The one line that a wrong command line is answered with."""
    with pytest.raises(ConfigError) as caught:
        parse(argv, environ or {})
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text
