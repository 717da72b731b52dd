"""etcd3's messages work with today's protobuf."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run_fresh(code: str) -> str:
    """Run code in a new interpreter where every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_messages_are_made_without_an_import_of_etcd3_which_todays_protobuf_cannot_load() -> None:
    run_fresh(
        """
        import sys
        from elastic.store.etcd.stubs import kv, rpc
        sent = rpc.RangeResponse(kvs=[kv.KeyValue(key=b"a")]).SerializeToString()
        assert rpc.RangeResponse.FromString(sent).kvs[0].key == b"a"
        assert not any(name.partition(".")[0] == "etcd3" for name in sys.modules)
        """
    )


def test_files_of_the_same_name_in_the_default_pool_do_not_collide() -> None:
    run_fresh(
        """
        from google.protobuf import descriptor_pb2, descriptor_pool
        for name in ("rpc.proto", "kv.proto"):
            other = descriptor_pb2.FileDescriptorProto(name=name, package="somebody.else")
            descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
        from elastic.store.etcd.stubs import rpc
        assert rpc.RangeRequest.DESCRIPTOR.file.package == "etcdserverpb"
        """
    )


def test_importing_the_library_imports_neither_grpc_nor_torch_and_the_store_no_torch() -> None:
    run_fresh(
        """
        import sys
        import elastic, elastic.store, elastic.store.memory_core, elastic.store.mirror, elastic.store.session
        assert "grpc" not in sys.modules
        import elastic.store.etcd
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        """
    )
