"""The launch API of OneFlow, so that an existing script keeps its calls.

Only the import changes::

    from elastic import oneflow as flow

    def config_distributed():
        flow.config.gpu_device_num(1)
        flow.env.ctrl_port(9988)
        flow.env.machine([{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}])

`gpu_device_num` and `ctrl_port` are collected. `machine` launches with the collected settings, so call it last. A
script for one machine has no `machine`: there the first call of `flow.launch()` or `elastic.init()` launches. In a
worker these functions do nothing.
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
"""The settings so far, by the name of the argument of `elastic.launch`."""
_launched: Final[list[str]] = []
"""The name of the call that launched; only workers ever have one."""


class config:  # noqa: N801  OneFlow's own name, used as flow.config.gpu_device_num(1).
    """`flow.config`: the settings of a node."""

    @staticmethod
    def gpu_device_num(count: int) -> None:
        """Set the number of workers on every node, each with its own GPU.

        Args:
            count: 1 or more.

        Raises:
            elastic.errors.ConfigError: `count` is not such a number, or the job has already been launched.
        """
        with error_report.reporting_config_errors():
            _collect("gpu_device_num", flags.whole("gpu_device_num", count, 1))

    @staticmethod
    def ctrl_port(port: int) -> None:
        """Set the port for the rendezvous of the workers.

        Args:
            port: 1 to 65535, the same on every node.

        Raises:
            elastic.errors.ConfigError: `port` is not such a number, or the job has already been launched.
        """
        with error_report.reporting_config_errors():
            _collect("ctrl_port", flags.whole("ctrl_port", port, 1, PORT_MAX))


class env:  # noqa: N801  As above: flow.env.machine(nodes).
    """`flow.env`: the nodes and their rendezvous."""

    ctrl_port = config.ctrl_port

    @staticmethod
    def machine(nodes: Sequence[Mapping[str, str]]) -> None:
        """Launch the script on these nodes with the collected settings.

        Args:
            nodes: A dict `{"addr": host}` for each node, the same list on every node. The first node prints the output.

        Raises:
            elastic.errors.ConfigError: The list is wrong. If nothing catches it, Python prints one line to stderr and
                exits with code 2.
        """
        _launch("flow.env.machine", nodes=nodes)


def launch(**more: Any) -> None:
    """Launch the script on this machine with the collected settings.

    Args:
        **more: Flags of elastic-launch by name, as in `elastic.launch`.

    Raises:
        elastic.errors.ConfigError: An argument is wrong. If nothing catches it, Python prints one line to stderr and
            exits with code 2.
    """
    _launch("flow.launch", **more)


def launch_if_collected() -> None:
    """Launch if there are collected settings and no call has launched yet. `elastic.init` calls it."""
    if _collected and not _launched:
        _launch("elastic.init")


def _launch(call: str, **more: Any) -> None:
    _launched.append(call)
    relaunch.launch(**{**_collected, **more})


def _collect(name: str, value: Any) -> None:
    if _launched:
        raise ConfigError(f"{name} was called after {_launched[0]}, which has already launched the job; call it before")
    if not _collected and not relaunch.inside_worker():
        atexit.register(_remind)
    _collected[name] = value


def _remind() -> None:
    """Report at exit that the script never launched."""
    if not _launched:
        after = "it" if len(_collected) == 1 else "them"
        sys.stderr.write(f"elastic: {joined(_collected)} had no effect; call flow.launch() after {after}\n")
