"""The durable facts of each role as bytes in its journal: written and read here, and nowhere else."""

import json
from collections.abc import Iterator

from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.net.wire import read_evidence, write_evidence
from silomix.runtime.store.journal import Journal
from silomix.v1 import body_pb2


def write_shuffler(journal: Journal, fact: shuffler.Fact) -> None:
    """Write a fact of a shuffler."""
    match fact:
        case shuffler.Released():
            value = {"silos": fact.silos, "model": fact.model.hex(), "groups": fact.groups}
            journal.put("released", fact.round, "", json.dumps(value).encode())
        case shuffler.KeysMade():
            journal.secrets.put("keys", fact.round, str(fact.attempt), fact.keys)
        case shuffler.KeysGone():
            journal.secrets.forget("keys", fact.round, str(fact.attempt))
        case shuffler.Accused():
            journal.put("accused", fact.round, fact.evidence.silo, write_evidence(fact.evidence).SerializeToString())


def read_shuffler(journal: Journal) -> Iterator[shuffler.Fact]:
    """Read all facts of a shuffler."""
    for round_, attempt, keys in journal.secrets.lots("keys"):
        yield shuffler.KeysMade(round_, int(attempt), keys)
    for round_, _, value in journal.facts("released"):
        fact = json.loads(value)
        model, groups = bytes.fromhex(fact["model"]), tuple(fact["groups"])
        yield shuffler.Released(round_, tuple(fact["silos"]), model, groups)
    for round_, _, value in journal.facts("accused"):
        yield shuffler.Accused(round_, read_evidence(body_pb2.Evidence.FromString(value)))


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
    for round_, _, value in journal.facts("applied"):
        fact = json.loads(value)
        yield aggregator.Applied(round_, bytes.fromhex(fact["model"]), fact["cohort"], fact["abandoned"])
    for round_, attempt, _ in journal.facts("tried"):
        yield aggregator.Tried(round_, int(attempt))
    for round_, hop, _ in journal.facts("hop"):
        yield aggregator.HopReleased(hop, round_)


def read_servers(journal: Journal) -> dict[int, str]:
    """Read which rule made the model of each round that was applied."""
    facts = ((round_, json.loads(value)) for round_, _, value in journal.facts("applied"))
    return {round_: fact["server"] for round_, fact in facts if not fact["abandoned"]}


def write_silo(journal: Journal, fact: silo.Joined) -> None:
    """Write a fact of a silo."""
    value = json.dumps({"model": fact.model.hex(), "chain": fact.chain}).encode()
    journal.put("joined", fact.round, str(fact.attempt), value)


def read_silo(journal: Journal) -> Iterator[silo.Joined]:
    """Read all facts of a silo."""
    for round_, attempt, value in journal.facts("joined"):
        fact = json.loads(value)
        yield silo.Joined(round_, int(attempt), bytes.fromhex(fact["model"]), tuple(fact["chain"]))
