"""The authenticated entrance to an etcd that a node serves: handshake, relay, and the client's tunnel."""
