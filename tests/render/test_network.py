"""NetworkPolicies allow exactly the connections of the protocol: the graph that they allow is computed and compared."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.render.network import Document, Peer, allowed
from tests.render.rendered import federation, of_kind, source

from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.net.edges import dialled_by, diallers_of, edges
from silomix.runtime.render.k8s import Cluster, Wants, render
from silomix.runtime.render.source import METRICS_PORT, RenderError, Source, load_source

DNS = Peer("dns", "kube-system", {"k8s-app": "kube-dns"})
PROMETHEUS = Peer("prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"})
STRANGER = Peer("stranger", "silomix", {"app.kubernetes.io/name": "something"})
NEIGHBOUR = Peer("neighbour", "monitoring", {"app.kubernetes.io/name": "grafana"})
NAMESAKE = Peer("namesake", "other", {"app.kubernetes.io/name": "silomix", "app.kubernetes.io/instance": "shuffler-1"})
WORLD = Peer("world", address="203.0.113.7")
OTHERS = [DNS, PROMETHEUS, STRANGER, NEIGHBOUR, NAMESAKE, WORLD]

Graph = set[tuple[str, str, int]]


def scene(found: Source, cluster: Cluster) -> tuple[list[Peer], Sequence[Document]]:
    """The pods that the workloads would make, and the policies, in the namespace that kustomize puts both into."""
    files = render(found, cluster)
    pods = [
        Peer(s["metadata"]["name"], cluster.namespace, s["spec"]["template"]["metadata"]["labels"])
        for s in of_kind(files, "StatefulSet")
    ]
    policies = of_kind(files, "NetworkPolicy")
    for policy in policies:
        policy["metadata"]["namespace"] = cluster.namespace
    return pods, policies


def graph(nodes: list[Peer], rules: Iterable[Document], ports: Iterable[int]) -> Graph:
    """Everything that may be dialled, by whom and where, but for name lookups."""
    rules = list(rules)
    everybody = [*nodes, *OTHERS]
    pairs = [(a, b) for a in everybody for b in everybody if a != b and (a in nodes or b in nodes)]
    found = {(a.name, b.name, port) for a, b in pairs for port in ports if allowed(a, b, port, rules)}
    return {edge for edge in found if edge[1:] != ("dns", 53)}


def needed(found: Federation) -> Graph:
    """What rounds need: silos dial hop 1 and the aggregator, each hop the next, the aggregator every hop."""
    port = {m.name: int(m.address.rpartition(":")[2]) for m in (found.aggregator, *found.shufflers)}
    stations = [*found.chain, found.aggregator.name]
    dials = [(found.chain[i], stations[i + 1]) for i in range(len(found.chain))]
    dials += [(found.aggregator.name, hop) for hop in found.chain]
    dials += [(silo.name, target) for silo in found.silos for target in (found.chain[0], found.aggregator.name)]
    metrics = {("prometheus", member, METRICS_PORT) for member in found.members}
    return {(a, b, port[b]) for a, b in dials} | metrics


PORTS = [22, 53, 443, *range(6999, 7012), METRICS_PORT]


@pytest.mark.parametrize(("silos", "shufflers"), [(3, 1), (3, 2), (5, 3)])
def test_one_cluster_allows_what_rounds_need_and_nothing_else(silos: int, shufflers: int) -> None:
    found = source(silos, shufflers)
    cluster = Cluster()
    assert graph(*scene(found, cluster), PORTS) == needed(found.federation)


def test_the_edges_of_three_silos_and_two_hops_by_name() -> None:
    found = source().federation
    assert {(edge.source, edge.target) for edge in edges(found)} == {
        *((f"silo-0{i}", target) for i in (1, 2, 3) for target in ("aggregator", "shuffler-1")),
        ("shuffler-1", "shuffler-2"),
        ("shuffler-2", "aggregator"),
        ("aggregator", "shuffler-1"),
        ("aggregator", "shuffler-2"),
    }
    assert dialled_by("silo-01", found) == ("aggregator", "shuffler-1")
    assert diallers_of("silo-01", found) == ()
    assert len(edges(found)) == len({(edge.source, edge.target) for edge in edges(found)})


def test_where_a_hop_may_be_missing_its_neighbours_dial_past_it() -> None:
    whole = source(3, 4).federation
    found = replace(whole, policy=replace(whole.policy, minimum_hops=3))
    assert dialled_by("shuffler-1", found) == ("shuffler-2", "shuffler-3")
    assert dialled_by("shuffler-3", found) == ("shuffler-4", "aggregator")
    assert dialled_by("shuffler-4", found) == ("aggregator",)
    assert dialled_by("silo-01", found) == ("aggregator", "shuffler-1", "shuffler-2")
    assert dialled_by("aggregator", found) == whole.chain


def without_one(rules: Sequence[Document]) -> Iterator[tuple[str, Sequence[Document]]]:
    """The same policies, each time without one rule."""
    for i, policy in enumerate(rules):
        for way in ("ingress", "egress"):
            for j, rule in enumerate(policy["spec"].get(way, [])):
                if rule.get("ports") == [{"protocol": p, "port": 53} for p in ("UDP", "TCP")]:
                    continue
                changed: Any = copy.deepcopy(rules)
                del changed[i]["spec"][way][j]
                yield f"{policy['metadata']['name']} {way} {j}", changed


def test_a_rule_that_is_missing_shows() -> None:
    """The comparison above can fail: without any one rule the graph is another."""
    found, cluster = source(), Cluster()
    nodes, right = scene(found, cluster)
    cases = list(without_one(right))
    assert len(cases) == (2 + 2) + (2 + 1) + (2 + 1) + (1 + 2)  # in and out: aggregator, two hops, silos
    for what, rules in cases:
        assert graph(nodes, rules, PORTS) < needed(found.federation), what


@pytest.mark.parametrize("policy", ["default-deny", "shuffler-2-edges"])
def test_a_policy_that_is_missing_or_too_wide_shows(policy: str) -> None:
    found, cluster = source(), Cluster()
    nodes, right = scene(found, cluster)
    others = [p for p in right if p["metadata"]["name"] != policy]
    if policy == "default-deny":  # a pod that has no policy of its own is open
        extra = Peer("standby", "silomix", {"app.kubernetes.io/name": "silomix"})
        assert not allowed(NEIGHBOUR, extra, 22, right)
        assert allowed(NEIGHBOUR, extra, 22, others)
    else:
        assert graph(nodes, others, PORTS) < needed(found.federation)
        wide = next(p for p in right if p["metadata"]["name"] == policy)
        wide["spec"]["ingress"].append({"from": [{"namespaceSelector": {}}]})
        assert graph(nodes, right, PORTS) > needed(found.federation)


def test_names_can_be_looked_up_and_nothing_else_goes_to_the_name_server() -> None:
    found, cluster = source(), Cluster()
    nodes, rules = scene(found, cluster)
    for pod in nodes:
        assert allowed(pod, DNS, 53, rules, "UDP")
        assert allowed(pod, DNS, 53, rules, "TCP")
        assert not allowed(pod, DNS, 443, rules)


ELSEWHERE = "{name}.example.org"


def test_a_silos_own_cluster_only_dials_out() -> None:
    found = source(host=ELSEWHERE)
    cluster = Cluster(overlay="silo", node="silo-02", namespace="hospital")
    nodes, rules = scene(found, cluster)
    assert [pod.name for pod in nodes] == ["silo-02"]
    assert graph(nodes, rules, PORTS) == {
        ("silo-02", "world", 7000),
        ("silo-02", "world", 7001),
        ("prometheus", "silo-02", METRICS_PORT),
    }


def test_a_shufflers_own_cluster_takes_the_hop_before_and_dials_the_one_after() -> None:
    found = source(host=ELSEWHERE)
    cluster = Cluster(overlay="shuffler", node="shuffler-2")
    assert graph(*scene(found, cluster), PORTS) == {
        ("world", "shuffler-2", 7002),
        ("shuffler-2", "world", 7000),
        ("prometheus", "shuffler-2", METRICS_PORT),
    }


def test_peers_whose_addresses_are_known_are_the_only_ones() -> None:
    found = source(host=ELSEWHERE)
    known = {"aggregator": ("192.0.2.1/32",), "shuffler-1": ("192.0.2.16/28", "2001:db8::/64")}
    cluster = Cluster(overlay="shuffler", node="shuffler-2", cidrs=known)
    (node,), rules = scene(found, cluster)
    aggregator, hop, hop6 = (Peer("x", address=a) for a in ("192.0.2.1", "192.0.2.20", "2001:db8::5"))
    assert allowed(aggregator, node, 7002, rules)
    assert allowed(hop, node, 7002, rules)
    assert allowed(hop6, node, 7002, rules)
    assert allowed(node, aggregator, 7000, rules)
    assert not allowed(node, hop, 7000, rules)
    assert not allowed(WORLD, node, 7002, rules)


def test_an_address_on_the_roster_is_the_only_one_that_may_be_dialled() -> None:
    found = source(host="192.0.2.9")
    cluster = Cluster(overlay="silo", node="silo-01")
    (node,), rules = scene(found, cluster)
    assert allowed(node, Peer("x", address="192.0.2.9"), 7001, rules)
    assert not allowed(node, WORLD, 7001, rules)


@pytest.mark.parametrize(
    ("host", "reached", "refused"),
    [
        ("broker.example.org", WORLD, STRANGER),
        ("198.51.100.4", Peer("broker", address="198.51.100.4"), WORLD),
        ("mqtt.events.svc", Peer("broker", "events", {"any": "pod"}), WORLD),
        ("mqtt.events", Peer("broker", "events", {"any": "pod"}), Peer("other", "elsewhere", {"any": "pod"})),
        ("mqtt", Peer("broker", "silomix", {"any": "pod"}), WORLD),
    ],
)
def test_a_broker_may_be_told(host: str, reached: Peer, refused: Peer, tmp_path: Path) -> None:
    home = federation()
    for file in ("federation.toml", "ca.pem", "operator.accepted"):
        (tmp_path / file).write_bytes((home / file).read_bytes())
    (tmp_path / "silo-01").mkdir()
    text = (home / "silo-01" / "node.toml").read_text()
    (tmp_path / "silo-01" / "node.toml").write_text(f'{text}\n[mqtt]\nhost = "{host}"\n')
    found, cluster = load_source(tmp_path), Cluster()
    nodes, rules = scene(found, cluster)
    told, other = (pod for pod in nodes if pod.name in ("silo-01", "silo-02"))
    assert allowed(told, reached, 8883, rules)
    assert not allowed(told, refused, 8883, rules)
    assert not allowed(told, reached, 1883, rules)
    assert not allowed(other, reached, 8883, rules)
    assert graph(nodes, rules, PORTS) == needed(found.federation)


def test_a_broker_in_the_namespace_is_left_alone() -> None:
    """What denies everything denies it to nodes: others in the namespace are their owners' affair."""
    _, rules = scene(source(), Cluster())
    broker = Peer("broker", "silomix", {"app.kubernetes.io/name": "mosquitto"})
    assert allowed(NEIGHBOUR, broker, 8883, rules)
    assert allowed(broker, WORLD, 443, rules)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"silo-01": ("192.0.2.0/24",)}, "without effect while aggregator, silo-02, silo-03 may be anywhere"),
        ({"shuffler-2": ("192.0.2.0/24",), "silo-02": ("192.0.2.0/24",)}, "silo-02: without effect while aggregator"),
    ],
)
def test_an_address_that_changes_nothing_is_refused(given: dict[str, tuple[str, ...]], says: str) -> None:
    with pytest.raises(RenderError, match=says):
        render(source(host=ELSEWHERE), Cluster(overlay="shuffler", node="shuffler-1", cidrs=given))


def test_an_address_of_somebody_whom_nobody_meets_is_refused() -> None:
    for peer in ("silo-02", "silo-01"):
        with pytest.raises(RenderError, match="meets it outside"):
            render(source(host=ELSEWHERE), Cluster(overlay="silo", node="silo-01", cidrs={peer: ("192.0.2.0/24",)}))


def test_all_addresses_given_leave_nobody_else() -> None:
    found = source(host=ELSEWHERE)
    known = {name: (f"192.0.2.{i}/32",) for i, name in enumerate(["aggregator", "silo-01", "silo-02", "silo-03"])}
    (node,), rules = scene(found, Cluster(overlay="shuffler", node="shuffler-1", cidrs=known))
    assert allowed(Peer("x", address="192.0.2.2"), node, 7001, rules)
    assert not allowed(WORLD, node, 7001, rules)
    known["silo-03"] = ("0.0.0.0/0",)
    (node,), rules = scene(found, Cluster(overlay="shuffler", node="shuffler-1", cidrs=known))
    assert allowed(WORLD, node, 7001, rules)


def test_behind_a_proxy_the_proxy_is_the_only_way_out() -> None:
    found = source(host=ELSEWHERE)
    cluster = Cluster(overlay="silo", node="silo-01", wants=Wants(proxy="http://198.51.100.8:3128"))
    (node,), rules = scene(found, cluster)
    assert allowed(node, Peer("proxy", address="198.51.100.8"), 3128, rules)
    assert not any(allowed(node, WORLD, port, rules) for port in (*PORTS, 3128))
    (pod,) = (s["spec"]["template"]["spec"] for s in of_kind(render(found, cluster), "StatefulSet"))
    assert pod["containers"][0]["env"] == [{"name": "https_proxy", "value": "http://198.51.100.8:3128"}]


@pytest.mark.parametrize("url", ["proxy:3128", "https://proxy:3128", "http://proxy", "http://:3128", "http://p:99999"])
def test_a_proxy_that_grpc_cannot_use_is_refused(url: str) -> None:
    with pytest.raises(RenderError, match="give http://HOST:PORT"):
        render(source(host=ELSEWHERE), Cluster(overlay="silo", node="silo-01", wants=Wants(proxy=url)))
