"""What a machine does not give is told before a node joins, or in one line when it turns out."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from elastic.errors import ConfigError
from launcher.system import limits as limits_module


def limited(monkeypatch: pytest.MonkeyPatch, *, files: int = -1, tasks: int = -1) -> None:
    """A process with these limits, -1 for none, of a user that is not root and runs nothing else."""
    limits = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_NPROC: tasks}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 3)


def test_too_few_open_files_are_told_with_how_many_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, files=64)
    limits_module.check_limits(1)
    with pytest.raises(ConfigError, match="ulimit -n 64 is too low: a node of 8 workers needs 104 open files"):
        limits_module.check_limits(8)
    with pytest.raises(ConfigError, match="a node and its etcd need 160 open files; raise the limit"):
        limits_module.check_limits(1, etcd=True)


def test_too_few_processes_are_told_with_how_many_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, tasks=20)
    limits_module.check_limits(1)
    with pytest.raises(ConfigError, match="ulimit -u 20 leaves room for 20 more processes and threads, but 34 are"):
        limits_module.check_limits(1, nodes=2)


def test_root_and_who_has_no_limit_may_do_what_they_want(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch)
    limits_module.check_limits(1000)
    limited(monkeypatch, tasks=1)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    limits_module.check_limits(1)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_lack_is_known_by_its_number_also_within_a_group_and_another_error_is_none(number: int) -> None:
    lack = OSError(number, os.strerror(number))
    for error in (lack, ExceptionGroup("", [ValueError(), ExceptionGroup("", [lack])])):
        found = limits_module.shortage_line(error)
        assert found is not None
        assert os.strerror(number) in str(found)
        assert found.exit_code == 4
    assert limits_module.shortage_line(OSError(errno.EACCES, "no")) is None
    assert limits_module.shortage_line(RuntimeError("something else")) is None
    assert limits_module.shortage_line(RuntimeError("can't start new thread")) is not None
