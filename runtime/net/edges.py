"""Who dials whom: the one list that network policies, firewalls, probes and the manual are made from."""

from dataclasses import dataclass

from silomix.runtime.core.protocol.federation import Federation

TO_HOPS = ("Show", "Prepare", "Open", "Agree", "Reveal", "Store", "Answer", "Prove", "Defend", "Convict")
"""What an aggregator asks of hops: the last four in tamper checks."""
FROM_SILOS = ("Watch", "GetModel", "GetSum", "Confirm", "GiveModel", "Say")
"""What silos ask of an aggregator: the last in tamper checks."""


@dataclass(frozen=True)
class Edge:
    """One node may open connections to another; nothing else of the protocol crosses a network."""

    source: str
    target: str
    calls: tuple[str, ...]
    """The methods of the protocol that use it."""


def edges(federation: Federation) -> tuple[Edge, ...]:
    """List the connections that rounds need, and no others: over every chain that the pool can form."""
    chain, aggregator, lost = federation.chain, federation.aggregator.name, federation.chain_rule.lost
    found = [Edge(aggregator, hop, TO_HOPS) for hop in chain]
    for place, hop in enumerate(chain):
        found += [Edge(hop, after, ("Relay",)) for after in chain[place + 1 : place + 2 + lost]]
    found += [Edge(hop, aggregator, ("Deliver",)) for hop in chain[-1 - lost :]]
    for silo in federation.silo_names:
        found.append(Edge(silo, aggregator, FROM_SILOS))
        found += [Edge(silo, hop, ("Submit",)) for hop in chain[: 1 + lost]]
    return tuple(found)


def dialled_by(name: str, federation: Federation) -> tuple[str, ...]:
    """Name whom a node dials, in the order of the list."""
    return tuple(edge.target for edge in edges(federation) if edge.source == name)


def diallers_of(name: str, federation: Federation) -> tuple[str, ...]:
    """Name who dials a node, in the order of the list."""
    return tuple(edge.source for edge in edges(federation) if edge.target == name)
