"""What a script or its flags ask of a restore, and what the job knows of its checkpoints."""

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
    """What a script or its flags ask of a restore. Those of rank 0 count: nodes may join with other flags."""

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
    """What was said in the call, otherwise what the flags say."""
    step_text, path = environ.get("ELASTIC_RESTORE_STEP"), environ.get("ELASTIC_RESUME_FROM") or None
    if step is None and step_text:
        if not step_text.isdecimal():
            raise ConfigError(f"ELASTIC_RESTORE_STEP is {step_text!r}; write the number of a step")
        step = int(step_text)
    if allow_rollback is None:
        allow_rollback = environ.get("ELASTIC_ALLOW_ROLLBACK", "").lower() in TRUE
    return RestoreOptions(step, os.fspath(resume_from) if resume_from is not None else path, allow_rollback)


def newest_known(environ: Mapping[str, str]) -> KnownCheckpoint | None:
    """The newest committed checkpoint that the job knows of."""
    text = environ.get("ELASTIC_SAVED", "")
    try:
        return _known.decode(text) if text else None
    except UNREADABLE as error:
        raise ConfigError(f"ELASTIC_SAVED is {text!r}, which cannot be read ({error}); unset it") from error
