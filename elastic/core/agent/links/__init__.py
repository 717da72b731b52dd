"""Links between agents: which nodes are watched, asked and heard, which vouch, and which may have a link (pure).

The watching agent dials: the leader keeps a link to every registered node, every other agent to the leader. A link that
is up costs nothing and is not asked anything, except while something is wrong:

- workers failed and all say that they lost a peer: everybody is asked once, before the failure is acted on;
- a member's key is gone: it is asked whether it works on, every quarter of a lease's time;
- this node leads and its lease is not refreshed: all are asked, because it holds its right to run for as long as it
  hears every member of the generation;
- this node's lease is not refreshed: it asks those who watch it for a vouch.
"""
