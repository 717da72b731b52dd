"""The names of scenarios in a picture, each understandable alone, by the name of their figures."""

from __future__ import annotations

from typing import Final

from tests.bench.recovery import KINDS, SILENCE_SHORT_S, STATE_MB

SHORT: Final = f", --silence-timeout {SILENCE_SHORT_S:g}"
NAMES: Final = {
    KINDS["node"].what: "a node is killed, script imports only torch",
    KINDS["node_in_step"].what: "a node is killed within a training step",
    KINDS["node_of_two"].what: "one of two nodes is killed",
    KINDS["proposer"].what: "the node of rank 0 is killed",
    KINDS["agent"].what: "only the agent of a node is killed",
    KINDS["worker"].what: "only a worker is killed",
    f"{KINDS['state'].what} ({STATE_MB:.0f} MB)": f"a node is killed, library with {STATE_MB:.0f} MB of state",
    KINDS["script_digits"].what: "a node is killed, digits example",
    KINDS["script_hf"].what: "a node is killed, Hugging Face Trainer",
    KINDS["script_lightning"].what: "a node is killed, Lightning Trainer",
    KINDS["stopped"].what: "a node freezes",
    f"{KINDS['stopped'].what}{SHORT}": f"a node freezes{SHORT}",
    KINDS["cut"].what: "a host loses its network",
    f"{KINDS['cut'].what}{SHORT}": f"a host loses its network{SHORT}",
    KINDS["stopped_leader"].what: "the leader's node freezes",
    KINDS["cut_leader"].what: "the leader's host loses its network",
    KINDS["newcomer"].what: "a node joins (planned)",
    KINDS["scale_down"].what: "elastic-ctl scale removes a node (planned)",
    KINDS["drain"].what: "a node drains (planned)",
}
