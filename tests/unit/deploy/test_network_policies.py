"""What the NetworkPolicies of deploy/kubernetes let through, by their selectors: between its pods, and from others."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest

from tests.support import kustomize
from tests.support.kustomize import KUBERNETES, OVERLAYS, Thing

CLIENT, PEER, ETCD_METRICS, METRICS = 2379, 2380, 2381, 9400
PORTS: Final = {CLIENT, PEER, ETCD_METRICS, METRICS, 6170, 29500}
"""All that a rule names, that of the parameter servers, and one for all others."""
NAME: Final = "app.kubernetes.io/name"


class Pod(NamedTuple):
    """What a policy knows of a pod."""

    name: str
    namespace: str
    labels: dict[str, str]


STRANGERS: Final = (
    Pod("no labels", "elastic", {}),
    Pod("part of it, but no node", "elastic", {"app.kubernetes.io/part-of": "elastic-launch"}),
    Pod("a node of another namespace", "default", {NAME: "elastic-launch"}),
    Pod("etcd of another namespace", "default", {NAME: "etcd"}),
)
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def things_of(overlay: str) -> list[Thing]:
    """All that is in the namespace: the overlay, and the parameter servers, which may be applied beside it."""
    return kustomize.rendered(KUBERNETES / "overlays" / overlay) + kustomize.rendered(KUBERNETES / "parameter-server")


def pods_of(things: list[Thing]) -> list[Pod]:
    made = [thing for thing in things if "template" in thing.get("spec", {})]
    return [
        Pod(one["metadata"]["name"], one["metadata"]["namespace"], one["spec"]["template"]["metadata"]["labels"])
        for one in made
    ]


def selects(selector: Thing, pod: Pod) -> bool:
    assert selector.keys() <= {"matchLabels"}, f"this test does not know {selector}"
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= pod.labels.items()


def admits(rule: Thing, source: Pod, namespace: str, port: int) -> bool:
    """Tell whether a rule of a policy of this namespace lets the source connect to a TCP port; nothing said is all."""
    assert rule.keys() <= {"from", "ports"}, f"this test does not know {rule}"
    peers: list[dict[str, Any]] = rule.get("from", [])
    ports: list[dict[str, Any]] = rule.get("ports", [])
    assert all(peer.keys() == {"podSelector"} for peer in peers)
    assert all(each.keys() == {"port"} and each["port"] in PORTS for each in ports)
    known = not peers or any(source.namespace == namespace and selects(one["podSelector"], source) for one in peers)
    return known and (not ports or any(each["port"] == port for each in ports))


def open_ports(things: list[Thing], source: Pod, target: Pod) -> set[int]:
    """The ports of the target that the source can connect to. A pod that no policy selects is open.

    No policy restricts what pods connect to themselves, such as DNS and the API server.
    """
    policies = [one for one in things if one["kind"] == "NetworkPolicy"]
    assert all(one["spec"]["policyTypes"] == ["Ingress"] for one in policies)
    over = [
        one["spec"]
        for one in policies
        if one["metadata"]["namespace"] == target.namespace and selects(one["spec"]["podSelector"], target)
    ]
    if not over:
        return PORTS
    rules = [rule for spec in over for rule in spec["ingress"]]
    return {port for port in PORTS if any(admits(rule, source, target.namespace, port) for rule in rules)}


def divided(overlay: str) -> tuple[list[Thing], list[Pod], Pod, list[Pod]]:
    """The objects, the nodes of all jobs, etcd, and every other pod: of the overlay, and of strangers."""
    things = things_of(overlay)
    pods = {pod.name: pod for pod in pods_of(things)}
    nodes = [pods.pop(name) for name in ("train", "ps", "workers")]
    etcd = pods.pop("etcd")
    assert list(pods) == (["autoscaler"] if overlay == "spot" else [])
    return things, nodes, etcd, [*pods.values(), *STRANGERS]


@each_overlay
def test_every_node_reaches_every_node_at_every_port(overlay: str) -> None:
    things, nodes, _, _ = divided(overlay)
    for source in nodes:
        for target in nodes:
            assert open_ports(things, source, target) == PORTS, (source, target)


@each_overlay
def test_nobody_else_reaches_a_node_but_for_its_metrics(overlay: str) -> None:
    things, nodes, etcd, others = divided(overlay)
    for source in (etcd, *others):
        for target in nodes:
            assert open_ports(things, source, target) == {METRICS}, (source, target)


@each_overlay
def test_nodes_reach_the_clients_port_of_etcd_and_not_that_of_its_peers(overlay: str) -> None:
    things, nodes, etcd, _ = divided(overlay)
    for source in nodes:
        assert open_ports(things, source, etcd) == {CLIENT, ETCD_METRICS}, source


@each_overlay
def test_only_members_of_etcd_reach_the_port_for_peers_and_strangers_reach_its_metrics_alone(overlay: str) -> None:
    things, _, etcd, others = divided(overlay)
    assert open_ports(things, etcd, etcd) == {CLIENT, PEER, ETCD_METRICS}
    for source in others:
        assert open_ports(things, source, etcd) == {ETCD_METRICS}, source


def test_a_pod_that_no_policy_selects_is_open_to_all() -> None:
    without = [thing for thing in things_of("cpu") if thing["kind"] != "NetworkPolicy"]
    etcd = next(pod for pod in pods_of(without) if pod.name == "etcd")
    assert open_ports(without, STRANGERS[0], etcd) == PORTS


@each_overlay
def test_the_ports_of_the_policies_are_those_that_the_pods_open(overlay: str) -> None:
    things = things_of(overlay)
    opened = {
        (container["name"], each["name"], each["containerPort"])
        for container in kustomize.containers(things)
        for each in container.get("ports", ())
    }
    etcd = {("etcd", "client", CLIENT), ("etcd", "peer", PEER), ("etcd", "metrics", ETCD_METRICS)}
    assert opened == etcd | {("node", "metrics", METRICS), ("node", "server", 6170)}
