"""The auth proxy in front of an etcd that a node hosts: handshake, relay, and the client's tunnel."""
