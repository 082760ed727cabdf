"""How much a peer may send, hold and make a node wait: every number, derived once from the federation file.

A message is measured before it is parsed. What it may measure is the length of the largest honest message of its kind,
which is put together here with every field as long as it can be. So a federation with long chunks or many silos has
room for them, and no peer has more.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from google.protobuf.message import Message

from silomix.runtime.config.owners.selfsigned import MAX_BYTES
from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.numbers.baseline import FLOAT_BITS, float_body
from silomix.runtime.core.numbers.masks import KEY_BYTES, SEALED_BYTES
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.numbers.tamper import SHARE_BYTES, rhos
from silomix.runtime.core.numbers.traps import POINT_BYTES, proof_bytes
from silomix.runtime.core.protocol.check.forms import SCALAR_BYTES
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import LIFE_BYTES, MOST_TOLD
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.rules import MOST_ATTEMPTS
from silomix.v1 import body_pb2, check_pb2, cohort_pb2, history_pb2, manifest_pb2, member_pb2, plan_pb2, services_pb2

NAME = "n" * 64
"""The longest name: docs/protocol.md allows 64 bytes."""
LARGE = (1 << 63) - 1
"""A number whose varint is as long as an unsigned one of 64 bits can be but for a byte; SLACK has room for that."""
SLACK_BYTES = 256
"""Beside every message: for numbers that grow, and for a field that a later version may add."""
SCHEMA_BYTES = 1 << 20
"""A model's schema in a manifest: about 8,000 tensors with names of 100 bytes, where the largest here have 400."""
PART_BYTES = 256 << 10
"""Of a model in one message: what grpc.aio moves fastest."""
TEXT_BYTES = 512
"""A sentence for people in a status or a refusal. It is cut there."""
RECORDS_BYTES = 256 << 10
"""Of records in one message, beside the first and the last."""
LEAST_NAME_BYTES = 3
"""A name of one letter, as it travels."""
MOST_EPOCHS = 2
"""Epochs in one greeting."""
EPOCH_BYTES, EPOCH_MEMBER_BYTES = 32 << 10, 2 << 10
"""A federation file with every key of the policy explained, and what each member takes in it, with its pin."""
HISTORY = 100
"""Rounds that a status tells of."""
SMALL_BYTES = 1 << 10
"""Requests that hold a digest or nothing, and what answers them: a receipt, a delivery, a health check."""
REFLECTION_BYTES = 64 << 10
"""An answer of the reflection service: the description of a .proto file."""
METADATA_BYTES = 8 << 10
"""Headers or trailers of a call. The longest of ours are a refusal's, with its sentence and evidence: 2 KiB."""

FIRST_S = 10.0
"""Time for the first message of a call: a caller that has dialled and said what it wants has it at hand."""
FRAME_S = 30.0
"""Time for each message after it, beside what its length takes: a silo masks the next chunks, or writes to its disk."""
SLOWEST_BYTES_S = 32 << 10
"""A line that is slower than 256 kbit/s is as good as down."""
READ_S = 30.0
"""Time that a reader has to take a message, beside what its length takes."""
HANDSHAKE_S = 10.0
"""Time to be known by a certificate, from the first packet to the first frame. Nothing else is known of the peer."""
LEAST_IDLE_S = 60
"""Time without a call after which a connection is ended, in a federation whose rounds are short."""

STREAMS = 8
"""Calls at once on one connection. Nobody has more than four: a watch, a model, a status, and one that broke."""
CONNECTIONS_EACH = 3
"""Connections of one member: its own, that of a probe or a person beside it, and one that broke unnoticed."""
SPARE_CONNECTIONS = 64
"""Connections of those who are not known yet. They take turns: HANDSHAKE_S is the longest that one is held."""


@dataclass(frozen=True)
class Limits:
    """Every limit of one federation. Lengths are those of serialised messages, in bytes."""

    members: int
    silos: int
    hops: int
    masked: bool
    plane_bytes: tuple[int, ...]
    """Of a full chunk, as the policy's mode sends it: sums of residues, or the rows of the paper's baselines."""
    round_s: int
    """The longest time that a round's attempt can take, from its first call to its last."""
    scalars: int = 0
    """Of one vector, in a tamper check; 0 where there is none."""
    traps: int = 0
    """Traps in all planes together: places that somebody states a residue of."""

    @classmethod
    def of(cls, *epochs: Federation) -> "Limits":
        """Derive the limits, with room for the records and sums of all these epochs."""
        planes = (_planes(epoch) for epoch in epochs)
        return cls(
            members=max(len(epoch.members) for epoch in epochs),
            silos=max(len(epoch.silos) for epoch in epochs),
            hops=max(len(epoch.shufflers) for epoch in epochs),
            masked=any(epoch.plan.level is not Level.TRUSTED for epoch in epochs),
            plane_bytes=tuple(max(each) for each in zip_longest(*planes, fillvalue=0)),
            round_s=max(epoch.policy.deadline_s + 2 * epoch.policy.release_s for epoch in epochs),
            scalars=max(
                SCALAR_BYTES * sum(rhos(epoch.plan)) if epoch.plan.level is Level.MALICIOUS else 0 for epoch in epochs
            ),
            traps=max(epoch.policy.traps * len(epoch.plan.moduli) for epoch in epochs),
        )

    # Frames of a body, and of what passes between hops

    @cached_property
    def planes(self) -> int:
        """Planes of a chunk: more are refused while they are counted."""
        return len(self.plane_bytes)

    @cached_property
    def chunk(self) -> int:
        """A full chunk, which nearly all frames are."""
        return sum(size + 6 for size in self.plane_bytes) + SLACK_BYTES

    @cached_property
    def header(self) -> int:
        """A header with a seed for every hop and the aggregator."""
        rest = body_pb2.Header(
            silo=NAME, manifest_digest=bytes(DIGEST_BYTES), chunks=1 << 31, signature=bytes(SIGNATURE_BYTES)
        )
        if self.scalars:
            rest.coin_commitment = bytes(DIGEST_BYTES)
        return _with(rest, (self.hops + 1, _SEED))

    @cached_property
    def cohort(self) -> int:
        """A cohort of the whole roster."""
        rest = cohort_pb2.Cohort(manifest_digest=bytes(DIGEST_BYTES), signature=bytes(SIGNATURE_BYTES))
        return _with(rest, (self.silos, cohort_pb2.Participant(silo=NAME, header_digest=bytes(DIGEST_BYTES))))

    @cached_property
    def grouping(self) -> int:
        """A number for each silo of the roster."""
        return 5 * self.silos + SIGNATURE_BYTES + SLACK_BYTES

    @cached_property
    def groups(self) -> int:
        """A seed for each silo of the roster, in groups of three or more."""
        return _with(services_pb2.Groups(), (self.silos, services_pb2.Group(size=1 << 31)), (self.silos, _SEED))

    @cached_property
    def trails(self) -> int:
        """The trails of every hop."""
        return _with(services_pb2.AgreeRequest(manifest_digest=bytes(DIGEST_BYTES)), (self.hops, _TRAIL))

    # The tamper check: nothing of it is ever sent below level malicious

    @cached_property
    def bodies(self) -> int:
        """What every silo has signed of its body."""
        return (_SIGNED_ROOT.ByteSize() + 6) * self.silos if self.scalars else 0

    @cached_property
    def statement(self) -> int:
        """Scalars of a body and of a mask for every hop, and at the traps its residues and commitments.

        That is more than anybody else has, but for a hop's second lot of residues.
        """
        rest = check_pb2.Statement(
            name=NAME,
            context=bytes(DIGEST_BYTES),
            coin=bytes(DIGEST_BYTES),
            signature=bytes(SIGNATURE_BYTES),
        )
        trapped = (2 * SCALAR_BYTES + self.hops * POINT_BYTES) * self.traps + 6 * (self.hops + 2) if self.traps else 0
        lots = max(3, self.hops + 1) * (self.scalars + 6)
        return rest.ByteSize() + lots + trapped + SLACK_BYTES if self.scalars else 0

    @cached_property
    def proof(self) -> int:
        """A hop's proofs for all traps, over the commitments of the whole roster and to its own pad."""
        rest = check_pb2.TrapProof(hop=NAME, check_digest=bytes(DIGEST_BYTES), signature=bytes(SIGNATURE_BYTES))
        return rest.ByteSize() + self.traps * proof_bytes(self.silos + 1) + SLACK_BYTES if self.traps else 0

    @cached_property
    def tosses(self) -> int:
        """The share of every silo."""
        return (_TOSS.ByteSize() + 6) * self.silos + SLACK_BYTES if self.scalars else 0

    @cached_property
    def check(self) -> int:
        """All that is said in a check."""
        said = self.tosses + (self.silos + self.hops + 1) * (self.statement + 6)
        return said + self.hops * (self.proof + 6) if self.traps else said

    @cached_property
    def subject(self) -> int:
        """What a check is about."""
        found = self.cohort + (self.header + 6) * self.silos + self.bodies + self.trails + SMALL_BYTES
        return found if self.scalars else 0

    @cached_property
    def said(self) -> int:
        """A silo's part in a check, or a hop's answer."""
        return SMALL_BYTES + self.statement

    @cached_property
    def proved(self) -> int:
        """A hop's answer when it is to prove: proofs, or a defence."""
        return SMALL_BYTES + self.proof

    @cached_property
    def asked(self) -> int:
        """A call to answer a coin, to prove, to defend oneself, or to sign for a release."""
        return self.trails + self.bodies + self.check + SLACK_BYTES

    @cached_property
    def case(self) -> int:
        """The evidence against a silo."""
        return self.manifest + self.subject + self.check + SMALL_BYTES if self.scalars else 0

    def frame(self, kind: str) -> int:
        """The longest frame of a kind, by the name of its field; nothing for a kind that does not exist."""
        lengths = {
            "header": self.header,
            "chunk": self.chunk,
            "cohort": self.cohort,
            "grouping": self.grouping,
            "groups": self.groups,
            "open": SMALL_BYTES,
            "trailer": SMALL_BYTES + self.trails + self.bodies,
        }
        return lengths.get(kind, 0)

    def announcement(self, kind: str) -> int:
        """The longest announcement of a kind, by the name of its field; nothing for a kind that does not exist."""
        lengths = {
            "manifest": self.manifest,
            "finished": SMALL_BYTES,
            "records": self.records,
            "wanted": SMALL_BYTES,
            "check": self.subject,
            "coin": self.tosses,
        }
        return lengths.get(kind, 0)

    def frame_s(self, kind: str) -> float:
        """Time that the next frame of a kind may take."""
        return FRAME_S + self.frame(kind) / SLOWEST_BYTES_S

    # Calls with one request

    @cached_property
    def prepare(self) -> int:
        """A call for keys, which names the silos of the round."""
        return (len(NAME) + 2) * self.silos + 2 * DIGEST_BYTES + SLACK_BYTES

    @cached_property
    def keys(self) -> int:
        """A hop's answer: a key for each silo."""
        return _with(services_pb2.PrepareResponse(last_released=LARGE), (self.silos, _ROUND_KEY))

    @cached_property
    def manifest(self) -> int:
        """A manifest with the keys of every hop and the aggregator for every silo, and a fence of every hop."""
        rest = manifest_pb2.Manifest(
            federation_digest=bytes(DIGEST_BYTES),
            model_digest=bytes(DIGEST_BYTES),
            schema_digest=bytes(DIGEST_BYTES),
            plan=plan_pb2.Plan(weight_levels=LARGE, moduli=[1 << 20] * 64),
            chain=[NAME] * self.hops,
            invited=[NAME] * self.silos,
            head_digest=bytes(DIGEST_BYTES),
            state_digest=bytes(DIGEST_BYTES),
            earlier=[bytes(DIGEST_BYTES)] * MOST_ATTEMPTS,
            applied=LARGE,
            signature=bytes(SIGNATURE_BYTES),
        )
        fence = manifest_pb2.Fence(
            hop=NAME,
            round=LARGE,
            attempt=1 << 31,
            manifest_digest=bytes(DIGEST_BYTES),
            signature=bytes(SIGNATURE_BYTES),
        )
        keys = (self.hops + 1) * self.silos if self.masked else 0
        return SCHEMA_BYTES + self.bond + _with(rest, (keys, _ROUND_KEY), (self.hops, fence))

    @cached_property
    def bond(self) -> int:
        """The proof that a model is bound to the whole roster."""
        hop = manifest_pb2.BoundHop(
            hop=NAME,
            root_in=bytes(DIGEST_BYTES),
            root_out=bytes(DIGEST_BYTES),
            pad_digest=bytes(DIGEST_BYTES),
            signature=bytes(SIGNATURE_BYTES),
        )
        rest = manifest_pb2.Bond(
            manifest_digest=bytes(DIGEST_BYTES), grouping_seal=bytes(DIGEST_BYTES), signature=bytes(SIGNATURE_BYTES)
        )
        if self.scalars:
            rest.check_digest = bytes(DIGEST_BYTES)
        silo = cohort_pb2.Participant(silo=NAME, header_digest=bytes(DIGEST_BYTES))
        return _with(rest, (self.silos, silo), (self.hops, hop)) + SLACK_BYTES

    # The release, and the round log

    @cached_property
    def opening(self) -> int:
        """A call to open an attempt: the manifest, and the record before it."""
        return self.manifest + self.record

    @cached_property
    def signatures(self) -> int:
        """Everybody's under a release."""
        return _with(services_pb2.RevealRequest(manifest_digest=bytes(DIGEST_BYTES)), (self.hops + 1, _SIGNATURE))

    @cached_property
    def reveal(self) -> int:
        """A call to show a pad: everybody's signatures, and the same as a proof to keep."""
        return self.signatures + self.bond

    @cached_property
    def shown(self) -> int:
        """What a hop shows an aggregator that begins: records, and for whom it has released the model."""
        return self.records + MOST_TOLD * (self.bond + SLACK_BYTES)

    @cached_property
    def record(self) -> int:
        """A record of a round with as many attempts as there can be, each of which all signed for."""
        attempt = history_pb2.Attempted(
            attempt=1 << 31,
            manifest_digest=bytes(DIGEST_BYTES),
            chain=[NAME] * self.hops,
            agreed=bytes(DIGEST_BYTES),
            silos=[NAME] * self.silos,
            signatures=[_SIGNATURE] * (self.hops + 1),
        )
        if self.scalars:
            attempt.culprit, attempt.evidence_digest = NAME, bytes(DIGEST_BYTES)
        rest = history_pb2.Record(
            outcome=NAME,
            federation_digest=bytes(DIGEST_BYTES),
            round=LARGE,
            root=bytes(DIGEST_BYTES),
            model_before=bytes(DIGEST_BYTES),
            model_after=bytes(DIGEST_BYTES),
            state_before=bytes(DIGEST_BYTES),
            state_after=bytes(DIGEST_BYTES),
            previous=bytes(DIGEST_BYTES),
            next_digest=bytes(DIGEST_BYTES),
            signature=bytes(SIGNATURE_BYTES),
        )
        return _with(rest, (MOST_ATTEMPTS, attempt), (self.hops, _SIGNATURE))

    @cached_property
    def records(self) -> int:
        """Records one after the other: as many as fit with those that came before being short, as most are."""
        return 2 * self.record + RECORDS_BYTES

    @cached_property
    def names(self) -> int:
        """Names in the records of one message: in the longest record, which may be of a larger epoch, or in many short
        ones. As many as have room there, if they are short, would take forty times the message to read.
        """
        return 2 * MOST_ATTEMPTS * (self.silos + 2 * self.hops + 1) + RECORDS_BYTES // LEAST_NAME_BYTES

    @cached_property
    def transcript(self) -> int:
        """All that it takes to read a sum: a header and a seed of every silo, a trail and a pad of every hop."""
        seeds = (DIGEST_BYTES + 4) * (self.silos + self.hops)
        headers = (self.header + 6) * self.silos
        checked = self.bodies + self.check if self.scalars else 0
        return self.manifest + self.cohort + headers + self.trails + self.signatures + seeds + checked

    @cached_property
    def sum_part(self) -> int:
        """Part of a released sum."""
        return max(self.transcript, self.chunk) + SLACK_BYTES

    @cached_property
    def model_part(self) -> int:
        """Part of a model, with who has computed it."""
        return self.part + _with(services_pb2.ModelPart(), (self.silos, _SIGNATURE))

    @cached_property
    def part(self) -> int:
        """A part of a model."""
        return PART_BYTES + SLACK_BYTES

    @cached_property
    def status(self) -> int:
        """The federation's state: who is present, the hops with their troubles, and the last rounds."""
        hop = services_pb2.HopStatus(name=NAME, state=NAME, trouble="t" * TEXT_BYTES)
        row = services_pb2.RoundStatus(round=LARGE, attempts=1 << 31, cohort=1 << 31, seconds=1, score=1)
        rest = services_pb2.GetStatusResponse(
            federation=NAME,
            phase=NAME,
            present=[NAME] * self.silos,
            head_digest=bytes(DIGEST_BYTES),
            stuck="t" * TEXT_BYTES,
            protocol=1 << 31,
            closes_s=1,
            closes_early=True,
        )
        return _with(rest, (self.hops, hop), (HISTORY, row))

    @cached_property
    def greeting(self) -> int:
        """A greeting with the pin of every member, each about to change its certificate, and with two epochs."""
        rest = member_pb2.Greeting(
            protocol=NAME, version=NAME, federation_digest=bytes(DIGEST_BYTES), ready_digest=bytes(DIGEST_BYTES)
        )
        return _with(rest, (self.members, _PIN), (self.hops, _LIFE)) + MOST_EPOCHS * self.epoch

    @cached_property
    def epoch(self) -> int:
        """A later epoch: it may have twice the members. One that is longer has to come by its owners."""
        return EPOCH_BYTES + EPOCH_MEMBER_BYTES * (2 * self.members + 16)

    # What a whole server, or a whole line, may get

    @cached_property
    def at_shuffler(self) -> int:
        """The longest message that a shuffler is ever sent: gRPC refuses a longer one when it is announced."""
        rare = max(self.records, self.greeting)
        check = max(self.asked, self.case) if self.scalars else 0
        return max(self.chunk, self.header, self.cohort, self.grouping, self.opening, self.prepare, rare, check)

    @cached_property
    def at_aggregator(self) -> int:
        """The longest message that an aggregator is ever sent."""
        trailer = self.trails + self.bodies + SMALL_BYTES
        rare = max(self.greeting, self.part, self.said)
        return max(self.chunk, self.header, self.cohort, self.groups, trailer, rare)

    @cached_property
    def answered(self) -> int:
        """The longest message that anybody is ever answered with."""
        history = max(self.records, self.shown, self.sum_part, self.greeting, self.subject, self.said, self.proved)
        return max(self.keys, self.manifest, self.model_part, self.status, REFLECTION_BYTES, history)

    @cached_property
    def connections(self) -> int:
        """Connections to one server, from all members and from strangers: more are refused at once."""
        return CONNECTIONS_EACH * self.members + SPARE_CONNECTIONS

    @cached_property
    def idle_s(self) -> int:
        """Time without a call after which a connection is ended: a silo's line to hop 1 lies idle while it trains."""
        return max(LEAST_IDLE_S, self.round_s)


_PIN = member_pb2.Pin(
    name=NAME,
    counter=LARGE,
    current=bytes(MAX_BYTES),
    next=bytes(MAX_BYTES),
    signature=bytes(SIGNATURE_BYTES),
)
_LIFE = member_pb2.Life(hop=NAME, life=bytes(LIFE_BYTES), signature=bytes(SIGNATURE_BYTES))
_SIGNED_ROOT = check_pb2.SignedRoot(root=bytes(DIGEST_BYTES), signature=bytes(SIGNATURE_BYTES))
_TOSS = check_pb2.Toss(
    silo=NAME, share=bytes(SHARE_BYTES), ballot=bytes(DIGEST_BYTES), signature=bytes(SIGNATURE_BYTES)
)
_SEED = body_pb2.SealedSeed(recipient=NAME, sealed=bytes(SEALED_BYTES), commitment=bytes(DIGEST_BYTES))
_SIGNATURE = history_pb2.Signature(name=NAME, signature=bytes(SIGNATURE_BYTES))
_TRAIL = history_pb2.Trail(
    hop=NAME,
    cohort_digest=bytes(DIGEST_BYTES),
    grouping_seal=bytes(DIGEST_BYTES),
    root_in=bytes(DIGEST_BYTES),
    root_out=bytes(DIGEST_BYTES),
    pad_digest=bytes(DIGEST_BYTES),
    signature=bytes(SIGNATURE_BYTES),
)
_ROUND_KEY = manifest_pb2.RoundKey(
    hop=NAME,
    silo=NAME,
    round=LARGE,
    attempt=1 << 31,
    public_key=bytes(KEY_BYTES),
    last_released=LARGE,
    signature=bytes(SIGNATURE_BYTES),
)


def _planes(federation: Federation) -> tuple[int, ...]:
    """The bytes of each plane of a full chunk."""
    policy, plan = federation.policy, federation.plan
    if policy.granularity is Granularity.SUM:
        return plan.plane_bytes(policy.chunk_parameters)
    cells = (FLOAT_BITS,) if float_body(policy.granularity) else plan.moduli
    return tuple((policy.chunk_parameters * cell + 7) // 8 for cell in cells)


def _with(rest: Message, *repeated: tuple[int, Message]) -> int:
    """Measure a message with so many of each of some others in it. Before each stand its tag and its length."""
    return rest.ByteSize() + sum(count * (each.ByteSize() + 6) for count, each in repeated) + SLACK_BYTES
