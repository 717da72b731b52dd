"""The auth proxy in front of an etcd that a node serves: handshake, relay, and the tunnel of a client."""
