"""The etcd v3 client, on `grpc.aio`: failover, deadlines, retries, and watches that report a lost stream."""

from elastic import _grpc  # noqa: F401

# isort: split

from elastic.store.etcd.address import EtcdAddress
from elastic.store.etcd.client import EtcdStore
from elastic.store.etcd.endpoint import EtcdOptions

__all__ = ["EtcdAddress", "EtcdOptions", "EtcdStore"]
