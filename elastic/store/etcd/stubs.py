"""etcd's messages and methods, from the `etcd3` package, with the protobuf that is installed.

The modules that etcd3 0.12 ships were generated for protobuf 3 and cannot be imported with protobuf 4 and later. What
they describe is fine: each carries its file descriptor as bytes. Those bytes are read out of the source text (nothing
of it is run), and today's protobuf builds the modules from them. They take their place in `sys.modules`, so that
`import etcd3` works from then on, for everybody in this process. We do not import it: its stubs say what the
descriptors say, too, and its client, which comes with them, is slow to load and not used.

The descriptors go into a pool of our own: their file names (`rpc.proto`, `kv.proto`) are so common that another
package's would collide with them in the default pool.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped, unused-ignore]
from google.protobuf.internal import builder  # type: ignore[import-untyped, unused-ignore]

from elastic.errors import ConfigError

_PACKAGE = "etcd3.etcdrpc"
_MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")
"""In the order of their imports: each needs only those before it."""
_SERIALIZED = re.compile(r"^\s*serialized_pb=_b\(('.*')\)", re.MULTILINE)


def _folder() -> Path:
    """Where etcd3's generated modules lie; finding it imports nothing."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError('the package etcd3 is missing; mend: pip install "etcd3>=0.12"')
    return Path(spec.submodule_search_locations[0]) / "etcdrpc"


def _descriptor(path: Path) -> bytes:
    """Read the serialized file descriptor that a generated module carries."""
    found = _SERIALIZED.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise ConfigError('this version of the package etcd3 is not known here; mend: pip install "etcd3==0.12.0"')
    text: str = ast.literal_eval(found[1])
    return text.encode("latin1")


def _build(name: str, path: Path, pool: DescriptorPool) -> ModuleType:
    """Make the module `name` from the descriptor in `path`."""
    serialized = _descriptor(path)
    pool.AddSerializedFile(serialized)
    file_name = path.name.replace("_pb2.py", ".proto")
    file = pool.FindFileByName(file_name)
    spec = importlib.machinery.ModuleSpec(f"{_PACKAGE}.{name}", None, origin=str(path))
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    module.__dict__["DESCRIPTOR"] = file
    builder.BuildMessageAndEnumDescriptors(file, module.__dict__)
    builder.BuildTopDescriptorsAndMessages(file, spec.name, module.__dict__)
    return module


def _load() -> tuple[Any, Any]:
    """Put the modules in their places, unless somebody did before."""
    if f"{_PACKAGE}.rpc_pb2" not in sys.modules:
        folder, pool = _folder(), DescriptorPool()
        sys.modules.update({f"{_PACKAGE}.{name}": _build(name, folder / f"{name}.py", pool) for name in _MODULES})
    return sys.modules[f"{_PACKAGE}.kv_pb2"], sys.modules[f"{_PACKAGE}.rpc_pb2"]


kv, rpc = _load()
"""Messages of keys and events, and messages of requests and answers."""


class ServiceStub:
    """The methods of one of etcd's services over one channel, by their names."""

    def __init__(self, service: str, channel: Any) -> None:
        """Take the methods from the description of the service, as the generated stubs have them."""
        for method in rpc.DESCRIPTOR.services_by_name[service].methods:
            asking = "stream" if method.client_streaming else "unary"
            answering = "stream" if method.server_streaming else "unary"
            call = getattr(channel, f"{asking}_{answering}")(
                f"/{method.containing_service.full_name}/{method.name}",
                request_serializer=getattr(rpc, method.input_type.name).SerializeToString,
                response_deserializer=getattr(rpc, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)
