"""Reports an error of the script or its settings: one line on stderr, and to the agent if no restart helps."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from elastic.channel import client, messages
from elastic.errors import ConfigError, ScriptMistake


@contextlib.contextmanager
def reporting_config_errors(*, unrecoverable: bool = True) -> Iterator[None]:
    """Print a `ConfigError` to stderr, in one line, and re-raise it as a `ScriptMistake`, without a stack trace.

    `unrecoverable` tells the agent that every start ends like this, so that the job fails without a restart. Pass False
    if only this machine has the problem.
    """
    try:
        yield
    except ScriptMistake:
        raise  # It has been printed.
    except ConfigError as error:
        raise ScriptMistake(report_error(error, code=ScriptMistake.exit_code, unrecoverable=unrecoverable)) from error


def report_error(error: Exception, *, code: int, unrecoverable: bool) -> str:
    """Print an error to stderr in one line, and return it; if `unrecoverable`, report it with `code` to the agent."""
    text = " ".join(str(error).split())
    sys.stderr.write(f"elastic: error: {text}\n")
    sys.stderr.flush()
    if unrecoverable and (end := client.channel_client(os.environ)) is not None:
        end.send(messages.Unrecoverable(messages.truncate_text(text), code))
    return text
