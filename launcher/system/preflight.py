"""What every start needs of the machine: a folder to stand in, and one for temporary files."""

from __future__ import annotations

import os
import tempfile

from elastic.errors import ConfigError


def check_surroundings() -> None:
    """Raise `ConfigError` when the working folder is gone, or nothing temporary can be written anywhere."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the folder that you stand in is not there ({error.strerror}); cd to another") from error
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError("there is no folder for temporary files; set TMPDIR to one that you can write") from error
