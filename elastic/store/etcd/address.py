"""The address of an etcd server, as users write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic.errors import ConfigError

_ADDRESS = re.compile(r"(?:(https?)://)?(\[[^\s/\[\],]+\]|[^\s:/\[\],]+):([0-9]{1,5})/?")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The address of a server: `target` is host:port as the user wrote it.

    `tls`: it was written with https://; `plain`: with http://. With neither, certificates decide whether to use TLS.
    """

    target: str
    tls: bool
    plain: bool = False

    @classmethod
    def parse(cls, text: str) -> EtcdAddress:
        """Parse host:port, http://host:port, https://host:port, [::1]:2379, or unix:/path of a hidden embedded server.

        Raises `ConfigError`, with what is wrong and how to fix it.
        """
        if text.startswith("unix:/"):
            return cls(text, False, plain=True)
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"{text!r} is not an etcd endpoint; write host:port, for example 10.0.0.5:2379")
        scheme, host, port = match.groups()
        if not 0 < int(port) < 65_536:
            raise ConfigError(f"{text!r} is not an etcd endpoint: there is no port {port}")
        return cls(f"{host}:{port}", scheme == "https", scheme == "http")
