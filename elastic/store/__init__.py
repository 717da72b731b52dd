"""The key-value store: a protocol, an in-memory implementation, and etcd v3 (client and embedded server)."""
