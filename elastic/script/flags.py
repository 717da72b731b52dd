"""What a script says in Python about its job, as flags of elastic-launch (pure).

Types and shapes are checked here, because only here they can be named as the script has them. Which flags there are,
and which text each of them takes, the launcher itself says.
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
    """The flags that say the same; what is None is left out.

    `nodes` is a list of `{"addr": host}`, `gpu_device_num` the number of workers on every node, `ctrl_port` a port.
    `more` are further flags by name: a text, a number, a list of them, or True for a switch;
    None and False leave a flag out. Raises `ConfigError`
    with one sentence that names the argument.
    """
    own: dict[str, tuple[str, str]] = {}
    if nodes is not None:
        own["ips"] = ("nodes", ",".join(addresses(nodes)))
    if gpu_device_num is not None:
        own["nproc_per_node"] = ("gpu_device_num", str(whole("gpu_device_num", gpu_device_num, 1)))
    if ctrl_port is not None:
        own["ctrl_port"] = ("ctrl_port", str(whole("ctrl_port", ctrl_port, 1, PORT_MAX)))
    made = [f"--{flag}={text}" for flag, (_, text) in own.items()]
    for name, value in (more or {}).items():
        if name in own and value is not None:
            raise ConfigError(f"{name} and {own[name][0]} say the same; leave one out")
        made += _flag(name, value)
    return tuple(made)


def addresses(nodes: Any) -> tuple[str, ...]:
    """The addresses of a list of nodes, in its order; the first is the node that shows the output."""
    if not isinstance(nodes, Sequence) or isinstance(nodes, str | bytes):
        raise ConfigError(f"nodes is {_shown(nodes)}, not a list; write nodes={EXAMPLE}")
    if not nodes:
        raise ConfigError(f"nodes is empty; write nodes={EXAMPLE}, or leave nodes out to run on this machine alone")
    places: dict[str, int] = {}
    for place, node in enumerate(nodes):
        address = _address(f"nodes[{place}]", node)
        if address in places:
            raise ConfigError(f"nodes[{place}] has the address of nodes[{places[address]}], {address}; name each once")
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
        raise ConfigError(f'{where} has {_shown(others[0])}, but a node has an "addr" and nothing else; leave it out')
    address = node[ADDR]
    if not isinstance(address, str):
        raise ConfigError(f"{where}: the address is {_shown(address)}, not a text; put it in quotes")
    address = address.strip()
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not address:
        raise ConfigError(f"{where}: the address is empty; name the node's host or IP address")
    if "," in address:
        raise ConfigError(f"{where}: {_shown(address)} is more than one address; write a dict for each node")
    return address


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number from `low` to `high`; `name` is what the script calls it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {_shown(value)}, not a whole number")
    if value < low or (high is not None and value > high):
        raise ConfigError(f"{name} is {value}; it is " + (f"{low} or more" if high is None else f"{low} to {high}"))
    return value


def _flag(name: str, value: Any) -> list[str]:
    """One further flag; none if it is None or False. One that is True has no value: it is a switch."""
    if value is None or value is False:
        return []
    return [f"--{name}" if value is True else f"--{name}={_text(name, value)}"]


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return ",".join(_text(name, one) for one in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{name} is {_shown(value)}; a text, a number or a list of them is due")
    return str(value)


def _shown(value: Any) -> str:
    """A value in a message: short, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
