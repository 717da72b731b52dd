"""How both ends of a connection prove that they know one secret: one handshake, for four purposes."""
