"""etcd v3 as a `Store`, on `grpc.aio`: several servers, deadlines, retries, watches that do not go deaf."""

from elastic.store.etcd.client import EtcdStore
from elastic.store.etcd.endpoint import Address, EtcdOptions

__all__ = ["Address", "EtcdOptions", "EtcdStore"]
