"""Links between agents: which nodes are watched and doubted, which vouch, and which may have a link (pure).

A link is up, down, or shows that the process at its other end is dead. The watching agent dials: the leader keeps a
link to every registered node, and the nodes that would take the lead first keep one to the leader. Nothing is said over
a link, except while something is wrong:

- a member's key is gone: the leader doubts its links, and the watched nodes are asked every quarter of a lease's time;
- this node leads and its lease is not refreshed: it doubts its links, too, because it holds its right to run for as
  long as it hears every member of the generation;
- this node's lease is not refreshed: it asks those who watch it for a vouch.
"""
