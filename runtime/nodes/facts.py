"""The durable facts of each role as bytes in its journal: written and read here, and nowhere else."""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from silomix.runtime.core.errors import Fault
from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.core.protocol.check.forms import read_scalars, write_scalars
from silomix.runtime.core.protocol.check.said import Statement
from silomix.runtime.core.protocol.check.trapped import Trapped
from silomix.runtime.core.protocol.hearing import LIFE_BYTES
from silomix.runtime.core.protocol.messages import Bond
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.net.check.said import read_proof, write_proof
from silomix.runtime.net.history import read_record, write_record
from silomix.runtime.net.wire import read_bond, read_evidence, write_bond, write_evidence
from silomix.runtime.store.journal import Journal
from silomix.v1 import body_pb2, check_pb2, history_pb2, manifest_pb2

T = TypeVar("T")


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
            }
            journal.secrets.put("pad", fact.round, fact.manifest.hex(), (("pad", fact.pad),))
            journal.put("padded", fact.round, fact.manifest.hex(), json.dumps(value).encode())
        case shuffler.PadGone():
            journal.forget("padded", fact.round, fact.manifest.hex())
            journal.secrets.forget("pad", fact.round, fact.manifest.hex())
        case shuffler.Closed():
            journal.put("closed", fact.round, str(fact.attempt), b"")
        case shuffler.Signed():
            journal.put("signed", fact.round, fact.manifest.hex(), json.dumps(_agreed(fact)).encode())
        case shuffler.Released():
            value = {
                **_agreed(fact),
                "groups": fact.groups,
                "bond": "" if fact.bond is None else write_bond(fact.bond).SerializeToString().hex(),
            }
            journal.put("released", fact.round, fact.manifest.hex(), json.dumps(value).encode())
        case shuffler.Heard():
            journal.put("heard", 0, "", fact.life + fact.signature)
        case shuffler.Stored():
            write_record_fact(journal, fact.record)
        case shuffler.Forked():
            _write_fork(journal, fact.known, fact.other)
        case shuffler.KeysMade():
            journal.secrets.put("keys", fact.round, str(fact.attempt), fact.keys)
        case shuffler.KeysGone():
            journal.secrets.forget("keys", fact.round, str(fact.attempt))
        case shuffler.Stated():
            journal.put("stated", fact.round, fact.manifest.hex(), _statement(fact.attempt, fact.statement))
        case shuffler.Proved():
            value = {"attempt": fact.attempt, "proof": write_proof(fact.proof).SerializeToString().hex()}
            journal.put("proved", fact.round, fact.manifest.hex(), json.dumps(value).encode())
        case shuffler.Convicted():
            journal.put("convicted", fact.round, fact.silo, fact.evidence)
        case shuffler.Accused():
            journal.put("accused", fact.round, fact.evidence.silo, write_evidence(fact.evidence).SerializeToString())


def _agreed(fact: shuffler.Signed | shuffler.Released) -> dict[str, Any]:
    return {
        "attempt": fact.attempt,
        "agreed": fact.agreed.hex(),
        "silos": fact.silos,
        "model": fact.model.hex(),
    }


def _statement(attempt: int, said: Statement) -> bytes:
    value = {
        "attempt": attempt,
        "name": said.name,
        "context": said.context.hex(),
        "coin": said.coin.hex(),
        "shape": [len(row) for row in said.scalars[0]],
        "scalars": [write_scalars(one).hex() for one in said.scalars],
        "signature": said.signature.hex(),
    }
    if said.trapped.residues:
        value["traps"] = [len(row) for row in said.trapped.residues[0]]
        value["residues"] = [write_scalars(one).hex() for one in said.trapped.residues]
        value["commitments"] = [one.hex() for one in said.trapped.commitments]
    return json.dumps(value).encode()


def _read_statement(value: bytes) -> tuple[int, Statement]:
    fact = json.loads(value)
    said = Statement(
        fact["name"],
        bytes.fromhex(fact["context"]),
        bytes.fromhex(fact["coin"]),
        tuple(read_scalars(bytes.fromhex(one), fact["shape"]) for one in fact["scalars"]),
        bytes.fromhex(fact["signature"]),
        Trapped(
            tuple(read_scalars(bytes.fromhex(one), fact["traps"]) for one in fact.get("residues", ())),
            tuple(bytes.fromhex(one) for one in fact.get("commitments", ())),
        ),
    )
    return fact["attempt"], said


def _read(journal: Journal, kind: str, make: Callable[[int, str, bytes], T]) -> Iterator[T]:
    """Read all facts of a kind. One that nobody can have written ends the node: what it decided once is not known."""
    for round_, key, value in journal.facts(kind):
        try:
            fact = make(round_, key, value)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError, Fault) as error:
            raise journal.damaged(f"{kind} of round {round_}", error) from None
        yield fact


def sweep_pads(journal: Journal) -> None:
    """Forget pads of no attempt, and attempts without their pad: no pad outlives its round.

    A hop that dies between the two writes leaves a pad. An owner who deletes a damaged file of secrets, as its message
    says, leaves an attempt; it is fenced from then on. With another pad the hop would sign a second story of one sum.
    """

    def attempt(round_: int, manifest: str, value: bytes) -> tuple[tuple[int, str], int]:
        return (round_, manifest), int(json.loads(value)["attempt"])

    pads, attempts = set(journal.secrets.keys("pad")), dict(_read(journal, "padded", attempt))
    for round_, manifest in attempts.keys() - pads:
        write_shuffler(journal, shuffler.Closed(round_, attempts[round_, manifest] + 1))
        journal.forget("padded", round_, manifest)
    for round_, manifest in pads - attempts.keys():
        journal.secrets.forget("pad", round_, manifest)


def read_shuffler(journal: Journal) -> Iterator[shuffler.Fact]:
    """Read all facts of a shuffler."""

    def padded(round_: int, manifest: str, value: bytes) -> shuffler.Padded:
        fact = json.loads(value)
        return shuffler.Padded(
            round_,
            fact["attempt"],
            bytes.fromhex(manifest),
            bytes.fromhex(fact["model"]),
            tuple(fact["chain"]),
            bytes.fromhex(fact["cohort"]),
            tuple(fact["silos"]),
            tuple(fact["groups"]),
            bytes.fromhex(fact["grouping"]),
            pads[manifest],
        )

    def signed(round_: int, manifest: str, value: bytes) -> shuffler.Signed:
        fact = json.loads(value)
        return shuffler.Signed(
            round_,
            fact["attempt"],
            bytes.fromhex(manifest),
            bytes.fromhex(fact["agreed"]),
            tuple(fact["silos"]),
            bytes.fromhex(fact["model"]),
        )

    def released(round_: int, manifest: str, value: bytes) -> shuffler.Released:
        fact, said = json.loads(value), signed(round_, manifest, value)
        bond = _bond(fact["bond"]) if fact.get("bond") else None
        return shuffler.Released(**vars(said), groups=tuple(fact["groups"]), bond=bond)

    def accused(round_: int, _: str, value: bytes) -> shuffler.Accused:
        return shuffler.Accused(round_, read_evidence(body_pb2.Evidence.FromString(value)))

    def stated(round_: int, manifest: str, value: bytes) -> shuffler.Stated:
        attempt, said = _read_statement(value)
        return shuffler.Stated(round_, attempt, bytes.fromhex(manifest), said)

    def proved(round_: int, manifest: str, value: bytes) -> shuffler.Proved:
        fact = json.loads(value)
        proof = read_proof(check_pb2.TrapProof.FromString(bytes.fromhex(fact["proof"])))
        return shuffler.Proved(round_, fact["attempt"], bytes.fromhex(manifest), proof)

    yield from _read(journal, "heard", lambda _, __, value: shuffler.Heard(value[:LIFE_BYTES], value[LIFE_BYTES:]))
    for record in read_log(journal):
        yield shuffler.Stored(record)
    for known, other in read_forks(journal):
        yield shuffler.Forked(known, other)
    for round_, attempt, keys in journal.secrets.lots("keys"):
        yield shuffler.KeysMade(round_, int(attempt), keys)
    yield from _read(journal, "closed", lambda round_, attempt, _: shuffler.Closed(round_, int(attempt)))
    pads = {manifest: lot[0][1] for _, manifest, lot in journal.secrets.lots("pad")}
    yield from _read(journal, "padded", padded)
    yield from _read(journal, "signed", signed)
    yield from _read(journal, "released", released)
    yield from _read(journal, "accused", accused)
    yield from _read(journal, "stated", stated)
    yield from _read(journal, "proved", proved)
    yield from _read(journal, "convicted", lambda round_, silo, value: shuffler.Convicted(round_, silo, value))


def write_record_fact(journal: Journal, record: Record) -> None:
    """Write a record of the round log; the same one with more countersignatures replaces it."""
    journal.put("log", record.round, "", write_record(record).SerializeToString())


def read_log(journal: Journal) -> Iterator[Record]:
    """Read the round log, oldest record first."""
    return _read(journal, "log", lambda _, __, value: read_record(history_pb2.Record.FromString(value)))


def _write_fork(journal: Journal, known: Record, other: Record) -> None:
    both = history_pb2.Records(records=[write_record(known), write_record(other)])
    journal.put("fork", known.round, "", both.SerializeToString())


def read_forks(journal: Journal) -> Iterator[tuple[Record, Record]]:
    """Read the evidence that the aggregator told two stories: two records of one round each time."""

    def both(_: int, __: str, value: bytes) -> tuple[Record, Record]:
        known, other = (read_record(r) for r in history_pb2.Records.FromString(value).records)
        return known, other

    return _read(journal, "fork", both)


def write_aggregator(journal: Journal, fact: aggregator.Fact, server: str) -> None:
    """Write a fact of an aggregator; `server` is the rule that makes its models."""
    match fact:
        case aggregator.Lived():
            journal.put("lived", 0, "", fact.life)
        case aggregator.Tried():
            value = {"manifest": fact.manifest.hex(), "chain": fact.chain}
            journal.put("tried", fact.round, str(fact.attempt), json.dumps(value).encode())
        case aggregator.Sealed():
            value = {"model": fact.model.hex(), "bond": write_bond(fact.bond).SerializeToString().hex()}
            journal.put("sealed", fact.round, str(fact.attempt), json.dumps(value).encode())
        case aggregator.Convicted():
            value = {"culprit": fact.culprit, "evidence": fact.evidence.hex()}
            journal.put("convicted", fact.round, str(fact.attempt), json.dumps(value).encode())
        case aggregator.HopReleased():
            journal.put("hop", fact.round, fact.hop, b"")
        case aggregator.Recorded():
            if fact.record.outcome is Outcome.APPLIED:
                journal.put("server", fact.record.round, "", server.encode())
            write_record_fact(journal, fact.record)


def _bond(text: str) -> Bond:
    return read_bond(manifest_pb2.Bond.FromString(bytes.fromhex(text)))


def read_aggregator(journal: Journal) -> Iterator[aggregator.Fact]:
    """Read all facts of an aggregator."""

    def tried(round_: int, attempt: str, value: bytes) -> aggregator.Tried:
        fact = json.loads(value)
        return aggregator.Tried(round_, int(attempt), bytes.fromhex(fact["manifest"]), tuple(fact["chain"]))

    def sealed(round_: int, attempt: str, value: bytes) -> aggregator.Sealed:
        fact = json.loads(value)
        return aggregator.Sealed(round_, int(attempt), bytes.fromhex(fact["model"]), _bond(fact["bond"]))

    def convicted(round_: int, attempt: str, value: bytes) -> aggregator.Convicted:
        fact = json.loads(value)
        return aggregator.Convicted(round_, int(attempt), fact["culprit"], bytes.fromhex(fact["evidence"]))

    yield from _read(journal, "lived", lambda _, __, life: aggregator.Lived(life))
    for record in read_log(journal):
        yield aggregator.Recorded(record)
    yield from _read(journal, "convicted", convicted)
    yield from _read(journal, "tried", tried)
    yield from _read(journal, "sealed", sealed)
    yield from _read(journal, "hop", lambda round_, hop, _: aggregator.HopReleased(hop, round_))


def read_servers(journal: Journal) -> dict[int, str]:
    """Read which rule made the model of each round that was applied."""
    return dict(_read(journal, "server", lambda round_, _, value: (round_, value.decode())))


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
        case silo.Tossed():
            value = json.dumps({"attempt": fact.attempt, "context": fact.context.hex()}).encode()
            journal.put("tossed", fact.round, fact.manifest.hex(), value)
        case silo.Stated():
            journal.put("stated", fact.round, fact.manifest.hex(), _statement(fact.attempt, fact.statement))


def read_silo(journal: Journal) -> Iterator[silo.Fact]:
    """Read all facts of a silo."""
    for record in read_log(journal):
        yield silo.Stored(record)
    for known, other in read_forks(journal):
        yield silo.Forked(known, other)

    def joined(round_: int, attempt: str, value: bytes) -> silo.Joined:
        fact = json.loads(value)
        return silo.Joined(round_, int(attempt), bytes.fromhex(fact["model"]), tuple(fact["chain"]))

    def tossed(round_: int, manifest: str, value: bytes) -> silo.Tossed:
        fact = json.loads(value)
        return silo.Tossed(round_, fact["attempt"], bytes.fromhex(manifest), bytes.fromhex(fact["context"]))

    def stated(round_: int, manifest: str, value: bytes) -> silo.Stated:
        attempt, said = _read_statement(value)
        return silo.Stated(round_, attempt, bytes.fromhex(manifest), said)

    yield from _read(journal, "joined", joined)
    yield from _read(journal, "tossed", tossed)
    yield from _read(journal, "stated", stated)


def write_lie(journal: Journal, round_: int, lie: str) -> None:
    """Write what a silo caught the aggregator with: it stays caught after a restart."""
    journal.put("lie", round_, "", lie.encode())


def read_lie(journal: Journal) -> str:
    """Read what the aggregator was caught with last; nothing, if it never was."""
    return next(reversed([*_read(journal, "lie", lambda _, __, value: value.decode())]), "")
