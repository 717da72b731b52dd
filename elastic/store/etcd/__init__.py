"""etcd v3 as a `Store`, on `grpc.aio`: several servers, deadlines, retries, watches that do not go deaf."""

from elastic import _grpc  # noqa: F401

# isort: split

from elastic.store.etcd.address import Address
from elastic.store.etcd.client import EtcdStore
from elastic.store.etcd.endpoint import EtcdOptions

__all__ = ["Address", "EtcdOptions", "EtcdStore"]
