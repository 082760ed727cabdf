"""The durable facts of each role as bytes in its journal: written and read here, and nowhere else."""

import json
from collections.abc import Iterator

from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.net.history import read_record, write_record
from silomix.runtime.net.wire import read_evidence, write_evidence
from silomix.runtime.store.journal import Journal
from silomix.v1 import body_pb2, history_pb2


def write_shuffler(journal: Journal, fact: shuffler.Fact) -> None:
    """Write a fact of a shuffler."""
    match fact:
        case shuffler.Padded():
            value = {
                "attempt": fact.attempt,
                "model": fact.model.hex(),
                "chain": fact.chain,
                "cohort": fact.cohort.hex(),
                "silos": fact.silos,
                "groups": fact.groups,
                "grouping": fact.grouping.hex(),
                "pad": fact.pad.value.hex(),
            }
            journal.put("padded", fact.round, fact.manifest.hex(), json.dumps(value).encode())
        case shuffler.PadGone():
            journal.forget("padded", fact.round, fact.manifest.hex())
        case shuffler.Closed():
            journal.put("closed", fact.round, str(fact.attempt), b"")
        case shuffler.Signed():
            value = {"attempt": fact.attempt, "agreed": fact.agreed.hex()}
            journal.put("signed", fact.round, fact.manifest.hex(), json.dumps(value).encode())
        case shuffler.Released():
            value = {
                "attempt": fact.attempt,
                "agreed": fact.agreed.hex(),
                "silos": fact.silos,
                "model": fact.model.hex(),
                "groups": fact.groups,
            }
            journal.put("released", fact.round, fact.manifest.hex(), json.dumps(value).encode())
        case shuffler.Stored():
            write_record_fact(journal, fact.record)
        case shuffler.Forked():
            _write_fork(journal, fact.known, fact.other)
        case shuffler.KeysMade():
            journal.secrets.put("keys", fact.round, str(fact.attempt), fact.keys)
        case shuffler.KeysGone():
            journal.secrets.forget("keys", fact.round, str(fact.attempt))
        case shuffler.Accused():
            journal.put("accused", fact.round, fact.evidence.silo, write_evidence(fact.evidence).SerializeToString())


def read_shuffler(journal: Journal) -> Iterator[shuffler.Fact]:
    """Read all facts of a shuffler."""
    for record in read_log(journal):
        yield shuffler.Stored(record)
    for known, other in read_forks(journal):
        yield shuffler.Forked(known, other)
    for round_, attempt, keys in journal.secrets.lots("keys"):
        yield shuffler.KeysMade(round_, int(attempt), keys)
    for round_, attempt, _ in journal.facts("closed"):
        yield shuffler.Closed(round_, int(attempt))
    for round_, manifest, value in journal.facts("padded"):
        fact = json.loads(value)
        yield shuffler.Padded(
            round_,
            fact["attempt"],
            bytes.fromhex(manifest),
            bytes.fromhex(fact["model"]),
            tuple(fact["chain"]),
            bytes.fromhex(fact["cohort"]),
            tuple(fact["silos"]),
            tuple(fact["groups"]),
            bytes.fromhex(fact["grouping"]),
            Secret(bytes.fromhex(fact["pad"])),
        )
    for round_, manifest, value in journal.facts("signed"):
        fact = json.loads(value)
        yield shuffler.Signed(round_, fact["attempt"], bytes.fromhex(manifest), bytes.fromhex(fact["agreed"]))
    for round_, manifest, value in journal.facts("released"):
        fact = json.loads(value)
        yield shuffler.Released(
            round_,
            fact["attempt"],
            bytes.fromhex(manifest),
            bytes.fromhex(fact["agreed"]),
            tuple(fact["silos"]),
            bytes.fromhex(fact["model"]),
            tuple(fact["groups"]),
        )
    for round_, _, value in journal.facts("accused"):
        yield shuffler.Accused(round_, read_evidence(body_pb2.Evidence.FromString(value)))


def write_record_fact(journal: Journal, record: Record) -> None:
    """Write a record of the round log; the same one with more countersignatures replaces it."""
    journal.put("log", record.round, "", write_record(record).SerializeToString())


def read_log(journal: Journal) -> Iterator[Record]:
    """Read the round log, oldest record first."""
    for _, _, value in journal.facts("log"):
        yield read_record(history_pb2.Record.FromString(value))


def _write_fork(journal: Journal, known: Record, other: Record) -> None:
    both = history_pb2.Records(records=[write_record(known), write_record(other)])
    journal.put("fork", known.round, "", both.SerializeToString())


def read_forks(journal: Journal) -> Iterator[tuple[Record, Record]]:
    """Read the evidence that the aggregator told two stories: two records of one round each time."""
    for _, _, value in journal.facts("fork"):
        known, other = (read_record(r) for r in history_pb2.Records.FromString(value).records)
        yield known, other


def write_aggregator(journal: Journal, fact: aggregator.Fact, server: str) -> None:
    """Write a fact of an aggregator; `server` is the rule that makes its models."""
    match fact:
        case aggregator.Tried():
            value = {"manifest": fact.manifest.hex(), "chain": fact.chain}
            journal.put("tried", fact.round, str(fact.attempt), json.dumps(value).encode())
        case aggregator.Sealed():
            value = {
                "manifest": fact.manifest.hex(),
                "model": fact.model.hex(),
                "agreed": fact.agreed.hex(),
                "silos": fact.silos,
                "signatures": [f"{name} {signature.hex()}" for name, signature in fact.signatures],
            }
            journal.put("sealed", fact.round, str(fact.attempt), json.dumps(value).encode())
        case aggregator.HopReleased():
            journal.put("hop", fact.round, fact.hop, b"")
        case aggregator.Recorded():
            if fact.record.outcome is Outcome.APPLIED:
                journal.put("server", fact.record.round, "", server.encode())
            write_record_fact(journal, fact.record)


def read_aggregator(journal: Journal) -> Iterator[aggregator.Fact]:
    """Read all facts of an aggregator."""
    for record in read_log(journal):
        yield aggregator.Recorded(record)
    for round_, attempt, value in journal.facts("tried"):
        fact = json.loads(value)
        yield aggregator.Tried(round_, int(attempt), bytes.fromhex(fact["manifest"]), tuple(fact["chain"]))
    for round_, attempt, value in journal.facts("sealed"):
        fact = json.loads(value)
        yield aggregator.Sealed(
            round_,
            int(attempt),
            bytes.fromhex(fact["manifest"]),
            bytes.fromhex(fact["model"]),
            bytes.fromhex(fact["agreed"]),
            tuple(fact["silos"]),
            tuple((name, bytes.fromhex(hexed)) for name, hexed in (one.rsplit(" ", 1) for one in fact["signatures"])),
        )
    for round_, hop, _ in journal.facts("hop"):
        yield aggregator.HopReleased(hop, round_)


def read_servers(journal: Journal) -> dict[int, str]:
    """Read which rule made the model of each round that was applied."""
    return {round_: value.decode() for round_, _, value in journal.facts("server")}


def write_silo(journal: Journal, fact: silo.Fact) -> None:
    """Write a fact of a silo."""
    match fact:
        case silo.Joined():
            value = json.dumps({"model": fact.model.hex(), "chain": fact.chain}).encode()
            journal.put("joined", fact.round, str(fact.attempt), value)
        case silo.Stored():
            write_record_fact(journal, fact.record)
        case silo.Forked():
            _write_fork(journal, fact.known, fact.other)


def read_silo(journal: Journal) -> Iterator[silo.Fact]:
    """Read all facts of a silo."""
    for record in read_log(journal):
        yield silo.Stored(record)
    for known, other in read_forks(journal):
        yield silo.Forked(known, other)
    for round_, attempt, value in journal.facts("joined"):
        fact = json.loads(value)
        yield silo.Joined(round_, int(attempt), bytes.fromhex(fact["model"]), tuple(fact["chain"]))
