"""Every decoder of bytes that come from outside, with good bytes of each kind to begin from.

A decoder may take bytes or refuse them with a `Fault` or a `UserError`; anything else that it raises is a finding.
"""

import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.core.protocol.federations import bond, cohort, evidence, federation, fence, headers, identity, manifest

from silomix.attacks.tamper.registry import MISBEHAVIOURS
from silomix.attacks.tamper.ring import Ring
from silomix.attacks.tamper.ring import federation as checked_federation
from silomix.runtime.capture import reader
from silomix.runtime.capture.format import Direction, encode_record
from silomix.runtime.capture.format import FileHeader as CaptureHeader
from silomix.runtime.config.keys import NODE_KEYS
from silomix.runtime.config.load import parse_federation
from silomix.runtime.config.tables import ConfigError, Where, parse
from silomix.runtime.core.errors import Fault, UserError
from silomix.runtime.core.numbers.masks import MaskContext, Secret, public_key, seal, unseal
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.core.protocol.check.blame import Case, Charge, decide
from silomix.runtime.core.protocol.messages import Grouping, Header, Receipt
from silomix.runtime.core.protocol.roundlog import genesis
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net import calls, wire
from silomix.runtime.net.check import said
from silomix.runtime.net.check.case import read_case, read_subject, write_case, write_subject
from silomix.runtime.net.framing import BODY, RELAY, chunk_frame, only_field, read_chunk
from silomix.runtime.net.meeting import read_epoch
from silomix.runtime.nodes import facts
from silomix.runtime.nodes.passage import open_chunk
from silomix.runtime.observe.remarks import read_line
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import read_model, write_model
from silomix.runtime.store.vault import Secrets, Vault
from silomix.v1 import body_pb2, case_pb2, check_pb2, manifest_pb2, member_pb2, services_pb2

REFUSALS = (Fault, UserError)
F = federation()
FIRST = genesis(F, bytes(32), bytes(32)).signed(identity("aggregator"))
M = manifest(F, attempt=2, fences=(fence(F, "hop-3", 1, 1),))
LAYOUT = layout(M)
PLANES = 64
"""More planes than any chunk of this layout has."""
PRIVATE = Secret(bytes(range(32)))
CONTEXT = MaskContext(bytes(32), 1, 16)
CHECKED = checked_federation()
LIES = ("flips-a-residue-2", "silo-shows-another-share", "equivocates-2")


@dataclass(frozen=True)
class Target:
    """A decoder, and bytes that it takes."""

    decode: Callable[[bytes], object]
    good: tuple[bytes, ...]

    def survives(self, raw: bytes) -> bool:
        """Decode, and say whether the bytes were taken; what is neither taken nor refused is raised."""
        try:
            self.decode(raw)
        except REFUSALS:
            return False
        return True


def message(kind: Any, read: Callable[[Any], object]) -> Callable[[bytes], object]:
    """What a node does with a message: parse it, then read it."""
    return lambda raw: read(calls.parse(kind, raw, "silo-01"))


# --- streams ----------------------------------------------------------------------------------------------------------


def stream(field: int, kind: Any) -> Callable[[bytes], object]:
    """What a hop does with a frame of a stream."""

    def decode(raw: bytes) -> object:
        if only_field(raw) == field:
            chunk = read_chunk(field, raw, PLANES)
            return None if chunk is None else open_chunk(chunk.chunk, LAYOUT, 0)
        frame = calls.parse(kind, raw, "silo-01")
        match frame.WhichOneof("kind"):
            case "header":
                return wire.read_header(frame.header)
            case "cohort":
                return wire.read_cohort(frame.cohort)
            case "grouping":
                return wire.read_grouping(frame.grouping)
            case "groups":
                return wire.read_groups(frame.groups)
        return None

    return decode


def chunk(field: int) -> bytes:
    body = LAYOUT.body()  # zeros
    return chunk_frame(field, 0, 0, LAYOUT.planes(LAYOUT.part(body, 0).data, 0))


# --- files ------------------------------------------------------------------------------------------------------------


def capture(raw: bytes) -> list[str]:
    return [record.kind for record in reader._records(reader._Source(io.BytesIO(raw)))]


def captured() -> bytes:
    head = CaptureHeader("silo-01", "silo", F.digest, 1.0, 1)
    frame = body_pb2.Frame(header=wire.write_header(headers(M, F)[0]))
    records = [encode_record(2.0, Direction.SENT, "shuffler-1", "Submit", 7, found) for found in (frame, ("x.y", b"z"))]
    return gzip.compress(head.line() + b"".join(records), mtime=0)


def model() -> bytes:
    schema = Schema((TensorSpec("a", (3, 2)), TensorSpec("b", (), buffer=True)))
    return write_model(schema, {"a": np.ones((3, 2), np.float32), "b": np.array(2, np.float32)})


def federation_file(raw: bytes) -> object:
    return parse_federation(_text(raw), Path("federation.toml"), ANCHOR)


def node_file(raw: bytes) -> object:
    file = Path("node.toml")
    return Where(file).take(parse(_text(raw), file), NODE_KEYS)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(Path("x"), "", "is not UTF-8") from None


def _example(name: str) -> bytes:
    return (Path(__file__).parents[2] / "deploy/kubernetes/one-cluster/base" / name).read_bytes()


ANCHOR = _example("ca.pem")


class Pads(Vault):
    """A vault with a pad for every attempt."""

    def __init__(self, manifest: str) -> None:
        self._manifest = manifest

    def lots(self, kind: str) -> Iterator[tuple[int, str, Secrets]]:
        if kind == "pad":
            yield 1, self._manifest, (("pad", PRIVATE),)


class Facts(Journal):
    """A journal with one fact, of any kind and of any content: what a damaged page would leave of it."""

    def __init__(self, kind: str, key: str, value: bytes) -> None:
        self._kind, self._key, self._value, self._path = kind, key, value, Path("journal.sqlite")
        self.secrets = Pads(key)

    def facts(self, kind: str) -> Iterator[tuple[int, str, bytes]]:
        if kind == self._kind:
            yield 1, self._key, self._value


def journal_facts(raw: bytes) -> None:
    """Read a fact as whichever role has such facts does."""
    kind, _, rest = raw.partition(b"\0")
    key, _, value = rest.partition(b"\0")
    journal = Facts(kind.decode(errors="replace"), key.decode(errors="replace"), value)
    list(facts.read_shuffler(journal))
    list(facts.read_aggregator(journal))
    list(facts.read_silo(journal))
    facts.read_servers(journal)


def written_facts() -> tuple[bytes, ...]:
    found: list[bytes] = []

    class Seen(Journal):
        def __init__(self, place: Path) -> None:
            self.secrets = Vault(place)

        def put(self, kind: str, round_: int, key: str, value: bytes) -> None:
            found.append(b"\0".join([kind.encode(), key.encode(), value]))

    head = headers(M, F)[0]
    with tempfile.TemporaryDirectory() as place:
        _write_all(Seen(Path(place)), head)
    return tuple(found)


def _write_all(seen: Journal, head: Header) -> None:
    for fact in (
        shuffler.Padded(1, 1, M.digest, bytes(32), M.chain, bytes(32), ("silo-1",), (), b"", PRIVATE),
        shuffler.Closed(1, 2),
        shuffler.Signed(1, 1, M.digest, bytes(32), ("silo-1", "silo-2"), bytes(32)),
        shuffler.Released(1, 1, M.digest, bytes(32), ("silo-1", "silo-2"), bytes(32), ()),
        shuffler.Stored(FIRST),
        shuffler.Forked(FIRST, FIRST),
        shuffler.KeysMade(1, 1, (("silo-1", PRIVATE),)),
        shuffler.Accused(1, evidence(M, head, "hop-1")),
        shuffler.Stated(1, 1, M.digest, SAID),
    ):
        facts.write_shuffler(seen, fact)
    for one in (
        aggregator.Tried(1, 1, M.digest, M.chain),
        aggregator.Sealed(1, 1, bytes(32), bond(F.silo_names)),
        aggregator.Convicted(1, 1, "hop-1", bytes(32)),
    ):
        facts.write_aggregator(seen, one, "average")
    for said_by_silo in (
        silo.Joined(1, 1, bytes(32), ("hop-1",)),
        silo.Tossed(1, 1, M.digest, bytes(32)),
        silo.Stated(1, 1, M.digest, SAID),
    ):
        facts.write_silo(seen, said_by_silo)


def journal_file(raw: bytes) -> None:
    """Open a journal's file as a node does, and read what is in it."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "journal.sqlite"
        path.write_bytes(raw)
        journal = Journal(path)
        try:
            for kind in (
                "padded",
                "closed",
                "signed",
                "released",
                "accused",
                "log",
                "fork",
                "tried",
                "sealed",
                "joined",
            ):
                list(journal.facts(kind))
        finally:
            journal.close()


def journal() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "journal.sqlite"
        made = Journal(path)
        for round_ in range(3):
            made.put("released", round_, "", json.dumps({"silos": ["silo-1"], "model": "00"}).encode())
        made.close()
        return path.read_bytes()


H = headers(M, F)


def case(raw: bytes) -> object:
    """What anybody does with evidence of a tamper check: read it, and judge for oneself."""
    return decide(read_case(calls.parse(case_pb2.Case, raw, "aggregator")), CHECKED)


def convicted() -> tuple[Case, ...]:
    """The evidence against a hop that altered a sum, a silo that showed another share, and a hop of two trails."""
    rings = [Ring({one.node: one.lie(one.node, Random(0))}).run() for one in MISBEHAVIOURS if one.name in LIES]
    found = {ring.verdicts[0].case.charge: ring.verdicts[0].case for ring in rings}
    assert len(found) == len(LIES), "a liar was not named"
    return tuple(found[charge] for charge in (Charge.EQUATION, Charge.SHARE, Charge.TRAILS))


PROVED = convicted()
TAMPERED = PROVED[0]
assert TAMPERED.check is not None
assert TAMPERED.defence is not None
assert TAMPERED.subject is not None
SAID = TAMPERED.check.statements[0]


TARGETS: dict[str, Target] = {
    "case": Target(case, tuple(write_case(one).SerializeToString() for one in PROVED)),
    "subject": Target(message(case_pb2.Subject, read_subject), (write_subject(TAMPERED.subject).SerializeToString(),)),
    "toss": Target(
        message(check_pb2.Toss, said.read_toss), (said.write_toss(TAMPERED.check.tosses[0]).SerializeToString(),)
    ),
    "statement": Target(
        message(check_pb2.Statement, lambda wire: said.read_statement(wire, CHECKED.plan)),
        (said.write_statement(SAID).SerializeToString(),),
    ),
    "check": Target(
        message(check_pb2.CheckTranscript, lambda wire: said.read_check(wire, CHECKED.plan)),
        (said.write_check(TAMPERED.check).SerializeToString(),),
    ),
    "defence": Target(
        message(check_pb2.Defence, said.read_defence), (said.write_defence(TAMPERED.defence).SerializeToString(),)
    ),
    "epoch": Target(
        message(member_pb2.Epoch, lambda epoch: read_epoch(epoch, replace(F, anchor=ANCHOR), "silo-01")),
        (member_pb2.Epoch(file=_example("federation.toml")).SerializeToString(),),
    ),
    "manifest": Target(
        message(manifest_pb2.Manifest, wire.read_manifest), (wire.write_manifest(M).SerializeToString(),)
    ),
    "round-key": Target(
        message(manifest_pb2.RoundKey, wire.read_round_key), (wire.write_round_key(M.hop_keys[0]).SerializeToString(),)
    ),
    "body-frame": Target(
        stream(BODY, body_pb2.Frame),
        (chunk(BODY), body_pb2.Frame(header=wire.write_header(H[0])).SerializeToString()),
    ),
    "relay-frame": Target(
        stream(RELAY, services_pb2.RelayFrame),
        (
            chunk(RELAY),
            services_pb2.RelayFrame(header=wire.write_header(H[0])).SerializeToString(),
            services_pb2.RelayFrame(cohort=wire.write_cohort(cohort(M, H))).SerializeToString(),
            services_pb2.RelayFrame(
                grouping=wire.write_grouping(Grouping((0, 0, 0, 0), bytes(64)))
            ).SerializeToString(),
        ),
    ),
    "evidence": Target(
        message(body_pb2.Evidence, wire.read_evidence),
        (wire.write_evidence(evidence(M, H[0], "hop-1")).SerializeToString(),),
    ),
    "receipt": Target(
        message(body_pb2.Receipt, wire.read_receipt),
        (wire.write_receipt(Receipt("silo-1", M.digest, bytes(32), "hop-1", bytes(64))).SerializeToString(),),
    ),
    "envelope": Target(
        lambda raw: unseal(raw, PRIVATE, CONTEXT), (seal(Secret(bytes([1] * 32)), public_key(PRIVATE), CONTEXT),)
    ),
    "model-file": Target(read_model, (model(),)),
    "capture-file": Target(capture, (captured(),)),
    "journal-facts": Target(journal_facts, written_facts()),
    "journal-file": Target(journal_file, (journal(),)),
    "federation-file": Target(federation_file, (_example("federation.toml"),)),
    "node-file": Target(node_file, (_example("silo-01/node.toml"), _example("aggregator/node.toml"))),
    "log-line": Target(
        lambda raw: read_line(raw.decode(errors="replace")),
        (
            b"2026-11-16T07:43:18.224Z WARNING silo-02  clipped: x  round=17  attempt=1",
            b'{"node": "silo-01", "level": "error", "message": "x", "round": 3}',
        ),
    ),
}


def corpus(name: str) -> list[bytes]:
    """What was found worth keeping: bytes that reach a branch of their own, and those that were findings once."""
    directory = Path(__file__).parent / "corpus" / name
    return [path.read_bytes() for path in sorted(directory.iterdir())] if directory.is_dir() else []
