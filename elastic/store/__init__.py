"""The store: a protocol, an in-memory implementation, and etcd v3."""
