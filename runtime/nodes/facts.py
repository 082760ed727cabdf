"""The durable facts of each role as bytes in its journal: written and read here, and nowhere else."""

import json
from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError

from silomix.runtime.core.errors import Fault
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.net.wire import read_evidence, write_evidence
from silomix.runtime.store.journal import Journal
from silomix.v1 import body_pb2

T = TypeVar("T")


def write_shuffler(journal: Journal, fact: shuffler.Fact) -> None:
    """Write a fact of a shuffler."""
    match fact:
        case shuffler.Released():
            value = {"silos": fact.silos, "model": fact.model.hex(), "groups": fact.groups}
            journal.put("released", fact.round, "", json.dumps(value).encode())
        case shuffler.KeysMade():
            keys = {name: secret.value.hex() for name, secret in fact.keys}
            journal.put("keys", fact.round, str(fact.attempt), json.dumps(keys).encode())
        case shuffler.KeysGone():
            journal.forget("keys", fact.round, str(fact.attempt))
        case shuffler.Accused():
            journal.put("accused", fact.round, fact.evidence.silo, write_evidence(fact.evidence).SerializeToString())


def _read(journal: Journal, kind: str, make: Callable[[int, str, bytes], T]) -> Iterator[T]:
    """Read all facts of a kind. One that nobody can have written ends the node: what it decided once is not known."""
    for round_, key, value in journal.facts(kind):
        try:
            fact = make(round_, key, value)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError, Fault) as error:
            raise journal.damaged(f"{kind} of round {round_}", error) from None
        yield fact


def read_shuffler(journal: Journal) -> Iterator[shuffler.Fact]:
    """Read all facts of a shuffler."""

    def keys(round_: int, attempt: str, value: bytes) -> shuffler.KeysMade:
        found = ((name, Secret(bytes.fromhex(secret))) for name, secret in json.loads(value).items())
        return shuffler.KeysMade(round_, int(attempt), tuple(found))

    def released(round_: int, _: str, value: bytes) -> shuffler.Released:
        fact = json.loads(value)
        model, groups = bytes.fromhex(fact["model"]), tuple(fact["groups"])
        return shuffler.Released(round_, tuple(fact["silos"]), model, groups)

    def accused(round_: int, _: str, value: bytes) -> shuffler.Accused:
        return shuffler.Accused(round_, read_evidence(body_pb2.Evidence.FromString(value)))

    yield from _read(journal, "keys", keys)
    yield from _read(journal, "released", released)
    yield from _read(journal, "accused", accused)


def write_aggregator(journal: Journal, fact: aggregator.Fact, server: str) -> None:
    """Write a fact of an aggregator; `server` is the rule that makes its models."""
    match fact:
        case aggregator.Tried():
            journal.put("tried", fact.round, str(fact.attempt), b"")
        case aggregator.HopReleased():
            journal.put("hop", fact.round, fact.hop, b"")
        case aggregator.Applied():
            value = {"model": fact.model.hex(), "cohort": fact.cohort, "abandoned": fact.abandoned, "server": server}
            journal.put("applied", fact.round, "", json.dumps(value).encode())


def read_aggregator(journal: Journal) -> Iterator[aggregator.Fact]:
    """Read all facts of an aggregator."""

    def applied(round_: int, _: str, value: bytes) -> aggregator.Applied:
        fact = json.loads(value)
        return aggregator.Applied(round_, bytes.fromhex(fact["model"]), fact["cohort"], fact["abandoned"])

    yield from _read(journal, "applied", applied)
    yield from _read(journal, "tried", lambda round_, attempt, _: aggregator.Tried(round_, int(attempt)))
    yield from _read(journal, "hop", lambda round_, hop, _: aggregator.HopReleased(hop, round_))


def read_servers(journal: Journal) -> dict[int, str]:
    """Read which rule made the model of each round that was applied."""

    def server(round_: int, _: str, value: bytes) -> tuple[int, str]:
        fact = json.loads(value)
        return round_, "" if fact["abandoned"] else str(fact["server"])

    return {round_: rule for round_, rule in _read(journal, "applied", server) if rule}


def write_silo(journal: Journal, fact: silo.Joined) -> None:
    """Write a fact of a silo."""
    value = json.dumps({"model": fact.model.hex(), "chain": fact.chain}).encode()
    journal.put("joined", fact.round, str(fact.attempt), value)


def read_silo(journal: Journal) -> Iterator[silo.Joined]:
    """Read all facts of a silo."""

    def joined(round_: int, attempt: str, value: bytes) -> silo.Joined:
        fact = json.loads(value)
        return silo.Joined(round_, int(attempt), bytes.fromhex(fact["model"]), tuple(fact["chain"]))

    yield from _read(journal, "joined", joined)
