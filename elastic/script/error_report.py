"""A mistake of the script or its settings, said in one line on stderr, and to the agent if no restart helps."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from elastic.channel import client, messages
from elastic.errors import ConfigError, ScriptMistake


@contextlib.contextmanager
def reporting_config_errors(*, unrecoverable: bool = True) -> Iterator[None]:
    """Say a `ConfigError` on stderr, in one line, and let it end the script without a stack trace.

    `unrecoverable` tells the agent that each start ends like this, so that the job fails without another one. It is not
    when the fault is this machine's alone.
    """
    try:
        yield
    except ScriptMistake:
        raise  # It was said.
    except ConfigError as error:
        raise ScriptMistake(report_error(error, code=ScriptMistake.exit_code, unrecoverable=unrecoverable)) from error


def report_error(error: Exception, *, code: int, unrecoverable: bool) -> str:
    """Say an error on stderr, in one line, which is returned; with `unrecoverable` to the agent, too, with `code`."""
    text = " ".join(str(error).split())
    sys.stderr.write(f"elastic: error: {text}\n")
    sys.stderr.flush()
    if unrecoverable and (end := client.channel_client(os.environ)) is not None:
        end.send(messages.Unrecoverable(messages.truncate_text(text), code))
    return text
