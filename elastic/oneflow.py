"""OneFlow's way to say what a job is, so that a script of OneFlow's keeps its lines.

One import is another::

    from elastic import oneflow as flow

    def config_distributed():
        flow.config.gpu_device_num(1)
        flow.env.ctrl_port(9988)
        flow.env.machine([{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}])

`gpu_device_num` and `ctrl_port` are collected. `machine` launches with what was collected, so that it comes last.
A script for one machine has no `machine`; there `flow.launch()` launches, or `elastic.init()`, whichever comes first.
Inside a worker all of this does nothing.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from elastic._text import joined
from elastic.environment import PORT_MAX
from elastic.errors import ConfigError
from elastic.script import error_report, flags, relaunch

_collected: Final[dict[str, Any]] = {}
"""What was set so far, by the name of the argument of `elastic.launch`."""
_launched: Final[list[str]] = []
"""The call that launched; only workers ever see one here."""


class config:  # noqa: N801  OneFlow's own name, used as flow.config.gpu_device_num(1).
    """`flow.config`: numbers of a node."""

    @staticmethod
    def gpu_device_num(count: int) -> None:
        """Start a worker for each of `count` GPUs on every node.

        Args:
            count: 1 or more.

        Raises:
            elastic.errors.ConfigError: It is no such number, or the job was launched already.
        """
        with error_report.reporting_config_errors():
            _collect("gpu_device_num", flags.whole("gpu_device_num", count, 1))

    @staticmethod
    def ctrl_port(port: int) -> None:
        """Have the workers meet at this port.

        Args:
            port: 1 to 65535, the same on every node.

        Raises:
            elastic.errors.ConfigError: It is no such number, or the job was launched already.
        """
        with error_report.reporting_config_errors():
            _collect("ctrl_port", flags.whole("ctrl_port", port, 1, PORT_MAX))


class env:  # noqa: N801  As above: flow.env.machine(nodes).
    """`flow.env`: the nodes and how they meet."""

    ctrl_port = config.ctrl_port

    @staticmethod
    def machine(nodes: Sequence[Mapping[str, str]]) -> None:
        """Launch on these nodes with what was set before.

        Args:
            nodes: A dict `{"addr": host}` for each node, the same list on every node. The first node shows the output.

        Raises:
            elastic.errors.ConfigError: The list is wrong; one line on stderr, and exit code 2.
        """
        _launch("flow.env.machine", nodes=nodes)


def launch(**more: Any) -> None:
    """Launch on this machine with what was set before.

    Args:
        more: Flags of elastic-launch by name, as in `elastic.launch`.

    Raises:
        elastic.errors.ConfigError: An argument is wrong; one line on stderr, and exit code 2.
    """
    _launch("flow.launch", **more)


def launch_if_collected() -> None:
    """Launch if something was set and nothing has launched yet: `elastic.init` calls this."""
    if _collected and not _launched:
        _launch("elastic.init")


def _launch(call: str, **more: Any) -> None:
    _launched.append(call)
    relaunch.launch(**{**_collected, **more})


def _collect(name: str, value: Any) -> None:
    if _launched:
        raise ConfigError(f"{name} comes after {_launched[0]}, which has started the job without it; call it before")
    if not _collected and not relaunch.inside_worker():
        atexit.register(_remind)
    _collected[name] = value


def _remind() -> None:
    """The script has ended and was never launched."""
    if not _launched:
        after = "it" if len(_collected) == 1 else "them"
        sys.stderr.write(f"elastic: {joined(_collected)} had no effect; call flow.launch() after {after}\n")
