"""The options of a restore, from the script or the flags, and the newest checkpoint that the job has recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import ConfigError
from elastic.train.restore.choose_checkpoint import KnownCheckpoint

_known = msgspec.json.Decoder(KnownCheckpoint)
TRUE = frozenset({"1", "true", "yes", "on"})


class RestoreOptions(msgspec.Struct, frozen=True):
    """The options of a restore. Those of rank 0 win, because nodes may join with other flags."""

    step: int | None
    resume_from: str | None
    allow_rollback: bool


def read_options(
    environ: Mapping[str, str],
    step: int | None,
    resume_from: str | os.PathLike[str] | None,
    *,
    allow_rollback: bool | None,
) -> RestoreOptions:
    """Return the options of the call, otherwise those of the flags. Raises `ConfigError`."""
    step_text, path = environ.get("ELASTIC_RESTORE_STEP"), environ.get("ELASTIC_RESUME_FROM") or None
    if step is None and step_text:
        if not step_text.isdecimal():
            raise ConfigError(f"ELASTIC_RESTORE_STEP is {step_text!r}; write the number of a step")
        step = int(step_text)
    if allow_rollback is None:
        allow_rollback = environ.get("ELASTIC_ALLOW_ROLLBACK", "").lower() in TRUE
    return RestoreOptions(step, os.fspath(resume_from) if resume_from is not None else path, allow_rollback)


def newest_known(environ: Mapping[str, str]) -> KnownCheckpoint | None:
    """Return the newest committed checkpoint that the job has recorded. Raises `ConfigError`."""
    text = environ.get("ELASTIC_SAVED", "")
    try:
        return _known.decode(text) if text else None
    except UNREADABLE as error:
        raise ConfigError(f"cannot parse ELASTIC_SAVED, which is {text!r} ({error}); unset it") from error
