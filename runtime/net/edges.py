"""Who dials whom: the one list that network policies, firewalls, probes and the manual are made from."""

from dataclasses import dataclass
from itertools import pairwise

from silomix.runtime.core.protocol.federation import Federation


@dataclass(frozen=True)
class Edge:
    """One node may open connections to another; nothing else of the protocol crosses a network."""

    source: str
    target: str
    calls: tuple[str, ...]
    """The methods of the protocol that use it."""


def edges(federation: Federation) -> tuple[Edge, ...]:
    """List the connections that rounds need, and no others. Shufflers that stand by have none."""
    chain, aggregator = federation.chain, federation.aggregator.name
    found = [Edge(aggregator, hop, ("Prepare", "Open", "Agree", "Reveal", "Store")) for hop in chain]
    found += [Edge(hop, after, ("Relay",)) for hop, after in pairwise(chain)]
    found.append(Edge(chain[-1], aggregator, ("Deliver",)))
    for silo in federation.silo_names:
        found += [Edge(silo, aggregator, ("Watch", "GetModel", "GetSum", "Confirm")), Edge(silo, chain[0], ("Submit",))]
    return tuple(found)


def dialled_by(name: str, federation: Federation) -> tuple[str, ...]:
    """Name whom a node dials, in the order of the list."""
    return tuple(edge.target for edge in edges(federation) if edge.source == name)


def diallers_of(name: str, federation: Federation) -> tuple[str, ...]:
    """Name who dials a node, in the order of the list."""
    return tuple(edge.source for edge in edges(federation) if edge.target == name)
