"""Converts the arguments of `elastic.launch` to flags of elastic-launch (pure).

It checks types and shapes, because only here an error can name them as in the script. The launcher checks the names and
values of the flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from elastic.environment import PORT_MAX
from elastic.errors import ConfigError

ADDR: Final = "addr"
EXAMPLE: Final = '[{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}]'


def flags(
    *, nodes: Any = None, gpu_device_num: Any = None, ctrl_port: Any = None, more: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Return the equivalent flags, without those that are None.

    `nodes` is a list of `{"addr": host}`, `gpu_device_num` the number of workers on every node, `ctrl_port` a port.
    `more` are further flags by name: a string, a number, a list of them, or True for a switch; None and False omit a
    flag. Raises `ConfigError` with one sentence that names the argument.
    """
    own: dict[str, tuple[str, str]] = {}
    if nodes is not None:
        own["ips"] = ("nodes", ",".join(addresses(nodes)))
    if gpu_device_num is not None:
        own["nproc_per_node"] = ("gpu_device_num", str(whole("gpu_device_num", gpu_device_num, 1)))
    if ctrl_port is not None:
        own["ctrl_port"] = ("ctrl_port", str(whole("ctrl_port", ctrl_port, 1, PORT_MAX)))
    made = [f"{_option(flag)}={text}" for flag, (_, text) in own.items()]
    for name, value in (more or {}).items():
        if name in own and value is not None:
            raise ConfigError(f"{name} and {own[name][0]} are the same setting; leave one out")
        made += _flag(name, value)
    return tuple(made)


def addresses(nodes: Any) -> tuple[str, ...]:
    """Return the addresses of a list of nodes, in order. Raises `ConfigError`."""
    if not isinstance(nodes, Sequence) or isinstance(nodes, str | bytes):
        raise ConfigError(f"nodes is {_shown(nodes)}, not a list; write nodes={EXAMPLE}")
    if not nodes:
        raise ConfigError(f"nodes is empty; write nodes={EXAMPLE}, or leave nodes out to run on this machine alone")
    places: dict[str, int] = {}
    for place, node in enumerate(nodes):
        address = _address(f"nodes[{place}]", node)
        if address in places:
            raise ConfigError(
                f"nodes[{place}] has the address of nodes[{places[address]}], {address}; list each node once"
            )
        places[address] = place
    return tuple(places)


def _address(where: str, node: Any) -> str:
    if not isinstance(node, Mapping):
        hint = f'{{"addr": "{node}"}}' if isinstance(node, str) else '{"addr": "192.168.1.12"}'
        raise ConfigError(f"{where} is {_shown(node)}, not a dict; write {hint}")
    if ADDR not in node:
        raise ConfigError(f'{where} has no "addr": {_shown(node)}; write {{"addr": "192.168.1.12"}}')
    others = [key for key in node if key != ADDR]
    if others:
        raise ConfigError(f'{where} has {_shown(others[0])}, but a node has only an "addr"; leave it out')
    address = node[ADDR]
    if not isinstance(address, str):
        raise ConfigError(f"{where}: the address is {_shown(address)}, not a string; put it in quotes")
    address = address.strip()
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not address:
        raise ConfigError(f"{where}: the address is empty; write the host name or IP address of the node")
    if "," in address:
        raise ConfigError(f"{where}: {_shown(address)} is more than one address; write a dict for each node")
    return address


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Check for a whole number from `low` to `high`; `name` is its name in the script. Raises `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {_shown(value)}, not a whole number")
    if value < low or (high is not None and value > high):
        raise ConfigError(
            f"{name} is {value}; it must be " + (f"{low} or more" if high is None else f"{low} to {high}")
        )
    return value


def _flag(name: str, value: Any) -> list[str]:
    """Return one further flag: nothing for None or False, a switch without a value for True."""
    if value is None or value is False:
        return []
    return [_option(name) if value is True else f"{_option(name)}={_text(name, value)}"]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return ",".join(_text(name, item) for item in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name} is {_shown(value)}; expected a string, a number or a list of them")
    return str(value)


def _shown(value: Any) -> str:
    """Format a value for a message: short, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
