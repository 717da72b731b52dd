"""Links between agents: which nodes are watched and doubted, which vouch, and which may have a link (pure).

A link is up, down, or shows that the process at its other end is dead. The watching agent dials: the leader keeps a
link to every registered node, and the first nodes in the succession order keep one to the leader. In addition to
heartbeats (`silence`), agents send messages over a link only while something is wrong:

- A member's key is gone: the leader doubts its links, and pings the watched nodes every quarter of a lease's TTL.
- This node leads and its lease is not refreshed: it doubts its links too, because it extends its run deadline for as
  long as it hears every member of the generation.
- This node's lease is not refreshed: it asks the nodes that watch it for a vouch.
"""
