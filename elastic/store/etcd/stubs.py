"""etcd's messages and methods, from the `etcd3` package, with the installed protobuf.

The modules of etcd3 0.12 were generated for protobuf 3 and cannot be imported with protobuf 4 and later. Their content
is still valid: each contains its file descriptor as bytes. This module extracts those bytes from the source text,
without running it, and the installed protobuf makes the message classes from them. etcd3 itself is not imported,
because its client is slow to load and not used.

The descriptors are in a separate pool: their file names (`rpc.proto`, `kv.proto`) are so common that those of another
package would collide with them in the default pool.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped, unused-ignore]

from elastic.errors import ConfigError

_FILES = ("kv", "auth", "rpc")
"""The files in the order of their imports: each depends only on those before it."""
_SERIALIZED = re.compile(r"^\s*serialized_pb=_b\(('.*')\)", re.MULTILINE)


def _folder() -> Path:
    """The directory of etcd3's generated modules, found without importing anything."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError('the package etcd3 is missing; fix: pip install "etcd3>=0.12"')
    return Path(spec.submodule_search_locations[0]) / "etcdrpc"


def _descriptor(path: Path) -> bytes:
    """Read the serialized file descriptor in a generated module."""
    found = _SERIALIZED.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise ConfigError('this version of the package etcd3 is not known here; fix: pip install "etcd3==0.12.0"')
    text: str = ast.literal_eval(found[1])
    return text.encode("latin1")


def _pool() -> Any:
    folder, pool = _folder(), DescriptorPool()
    for name in _FILES:
        pool.AddSerializedFile(_descriptor(folder / f"{name}_pb2.py"))
    return pool


def _messages(file: Any) -> Any:
    """The message classes of a file, by name."""
    return SimpleNamespace(**{name: GetMessageClass(each) for name, each in file.message_types_by_name.items()})


_files = _pool()
_rpc_file = _files.FindFileByName("rpc.proto")
kv, rpc = _messages(_files.FindFileByName("kv.proto")), _messages(_rpc_file)
"""The messages of keys and events, and those of requests and answers."""


class EtcdStub:
    """The methods of etcd over one channel, by name; the names are unique among all services."""

    def __init__(self, channel: Any) -> None:
        """Make the methods from the service descriptors, as in generated stubs."""
        for service in _rpc_file.services_by_name.values():
            for method in service.methods:
                asking = "stream" if method.client_streaming else "unary"
                answering = "stream" if method.server_streaming else "unary"
                call = getattr(channel, f"{asking}_{answering}")(
                    f"/{service.full_name}/{method.name}",
                    request_serializer=getattr(rpc, method.input_type.name).SerializeToString,
                    response_deserializer=getattr(rpc, method.output_type.name).FromString,
                )
                setattr(self, method.name, call)
