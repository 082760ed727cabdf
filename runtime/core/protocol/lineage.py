"""Lineage: anybody who has a round's record and its transcript computes the sum and the next model, bit for bit.

The aggregator publishes what left the chain, the pads, and the seeds of its own layer. Nothing of that is taken on its
word: the hops have signed the root of the vector and the digests of the pads, and the silos' headers commit to the
seeds. So whoever publishes another mean, or another model, is found out by every silo.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.learning.optimise import Optimiser, combine, step
from silomix.runtime.core.numbers.codec import Aggregate, Codec
from silomix.runtime.core.numbers.masks import AGGREGATOR, Secret, commitment, mask_streams
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol.check.blame import Case, Charge, false_pads
from silomix.runtime.core.protocol.check.proofs import check_holds
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    SignedRoot,
    Subject,
    check_subject,
    checks,
    coin_of,
    relayed,
)
from silomix.runtime.core.protocol.check.trapped import Traps
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, body_root, chunk_digest
from silomix.runtime.core.protocol.release import Ready, Signatures, check_pads, check_ready
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.core.protocol.rules import check_cohort, check_header, check_manifest, layout

Tensors = dict[str, Array]


@dataclass(frozen=True)
class Transcript:
    """All that it takes to read a released sum."""

    manifest: Manifest
    cohort: Cohort
    headers: tuple[Header, ...]
    """In the order of the cohort."""
    ready: Ready
    signatures: Signatures
    pads: tuple[Secret, ...] = field(default=(), repr=False)
    """In the order of the chain."""
    seeds: tuple[Secret, ...] = field(default=(), repr=False)
    """Those of the aggregator's layer, in the order of the cohort; none at level trusted."""
    bodies: tuple[SignedRoot, ...] = ()
    """At level malicious: what the silos have signed of their bodies, in the order of the cohort."""
    check: CheckTranscript | None = None
    """At level malicious: all that was said in the tamper check."""

    @property
    def subject(self) -> Subject:
        """What the tamper check was about."""
        return Subject(self.cohort, self.headers, self.bodies, replace(self.ready, check=b""))


def follows(federation: Federation) -> bool:
    """Whether silos compute models themselves: not where sums leave by group, or in the paper's literal modes."""
    return federation.policy.granularity is Granularity.SUM and not federation.policy.group_size


def check_transcript(transcript: Transcript, record: Record, federation: Federation, *, known: bytes = b"") -> None:
    """Check that a transcript is of the release that a record names. `known` is a manifest that was checked before.

    Whatever does not hold is the aggregator's fault, who signed for all of it: but for a pad that its hop lied about.
    """
    with relayed(federation):
        _check_released(transcript, record, federation, known)
        if checks(federation):
            _check_said(transcript, federation)
    case = false_pad(transcript, federation)
    if case is not None:
        raise PeerFault(Reason.TAMPERED, f"{case.hop} lied about its pad in the tamper check", peer=case.hop)


def _check_released(transcript: Transcript, record: Record, federation: Federation, known: bytes) -> None:
    manifest, ready = transcript.manifest, transcript.ready
    last = record.attempts[-1] if record.attempts else None
    if record.outcome is not Outcome.APPLIED or last is None:
        raise PeerFault(Reason.WRONG_ROUND, f"round {record.round} was not applied", found=record.round)
    if (manifest.digest, ready.manifest) != (last.manifest, last.manifest) or ready.digest != last.agreed:
        raise PeerFault(Reason.WRONG_MANIFEST, f"this is not what was released in round {record.round}")
    begun = (manifest.round, manifest.head, manifest.model, manifest.state)
    if begun != (record.round, record.previous, record.model_before, record.state_before):  # an old one, once more
        raise PeerFault(Reason.WRONG_MANIFEST, f"what was released belongs to another round than {record.round}")
    if ready.root != record.root or transcript.cohort.silos != last.silos:
        raise PeerFault(Reason.WRONG_MANIFEST, f"the record of round {record.round} names another sum or cohort")
    if manifest.digest != known:
        check_manifest(manifest, federation)
    check_ready(ready, transcript.cohort.digest, manifest.chain, federation)
    headers = {header.digest: header for header in transcript.headers}
    check_cohort(transcript.cohort, manifest, federation, headers)
    if len(transcript.pads) != len(manifest.chain):
        raise PeerFault(Reason.WRONG_PAD, f"{len(transcript.pads)} pads came of {len(manifest.chain)} hops")
    check_pads(ready, dict(zip(manifest.chain, transcript.pads, strict=True)))
    for participant in transcript.cohort.participants:  # hop 1 has named them, and need not have looked at them
        check_header(headers[participant.header], manifest, federation)
    _check_seeds(transcript, headers)


def _check_said(transcript: Transcript, federation: Federation) -> None:
    """Check a release at level malicious: the coin, everybody's scalars, and what hops have proved."""
    check, subject, manifest = transcript.check, transcript.subject, transcript.manifest
    if check is None or transcript.ready.check != check.digest:
        raise PeerFault(Reason.TAMPERED, "a release without the tamper check that was signed for")
    check_subject(subject, manifest, federation)
    coin_of(subject, check.tosses, federation)
    check_holds(check, subject.context, subject.cohort.silos, manifest.chain, federation)


def false_pad(transcript: Transcript, federation: Federation) -> Case | None:
    """Recompute what the hops have stated of their pads, now that these are shown; make a case of the first lie."""
    check, manifest, subject = transcript.check, transcript.manifest, transcript.subject
    if check is None:
        return None
    pads = dict(zip(manifest.chain, transcript.pads, strict=True))
    for hop in false_pads(manifest, subject, check, pads, federation):
        shown = bytes(bytearray(pads[hop].value))
        return Case(Charge.PAD, manifest, subject, check=check, hop=hop, pad=shown)
    return None


def _check_seeds(transcript: Transcript, headers: Mapping[bytes, Header]) -> None:
    manifest, cohort = transcript.manifest, transcript.cohort
    masked = manifest.plan.level is not Level.TRUSTED
    if len(transcript.seeds) != masked * len(cohort.participants):
        raise PeerFault(Reason.WRONG_PAD, f"{len(transcript.seeds)} seeds came of {len(cohort.participants)} silos")
    context = manifest.context(AGGREGATOR)
    for participant, seed in zip(cohort.participants, transcript.seeds, strict=masked):
        if commitment(seed, context) != headers[participant.header].seeds[-1].commitment:
            raise PeerFault(Reason.WRONG_PAD, f"the seed of {participant.silo} is not the one that it committed to")


def check_root(body: Bytes, transcript: Transcript) -> None:
    """Check that a vector is the one that the last hop signed for."""
    shape = layout(transcript.manifest)
    chunks = []
    for i in range(shape.chunks):
        planes = shape.check(i, shape.planes(shape.part(body, i).data, i))
        chunks.append(chunk_digest(i, shape.start(i), [plane.data for plane in planes]))
    if body_root(chunks) != transcript.ready.root:
        raise PeerFault(Reason.ROOT_MISMATCH, "the sum that came is not the one that was released")


def check_vector(body: Bytes, transcript: Transcript, federation: Federation) -> None:
    """Check that a vector is the one that was released, and at level malicious the one that was checked.

    The last hop states scalars of what it sent, and the aggregator of what came. Together they could state those of
    another vector than they signed for, and every equation would hold.
    """
    check_root(body, transcript)
    check, manifest = transcript.check, transcript.manifest
    if check is None:
        return
    arrived = check.statements[-1]
    if Traps.drawn(check.coin, manifest, federation.policy).forms([body])[0] != arrived.passed_on(hop=False):
        raise PeerFault(
            Reason.TAMPERED,
            f"{manifest.chain[-1]} and {arrived.name} stated other scalars in the tamper check than those of the "
            "vector that they signed for",
        )


def uncover(body: Bytes, transcript: Transcript) -> None:
    """Take the pads and the aggregator's masks off a vector, in place: what is left is the sum."""
    manifest, shape = transcript.manifest, layout(transcript.manifest)
    pads = zip(manifest.chain, transcript.pads, strict=True)
    context = manifest.context(AGGREGATOR)
    covers = [(pad, transcript.ready.pad_context(hop, manifest.chunk_parameters)) for hop, pad in pads]
    streams = mask_streams([*covers, *((seed, context) for seed in transcript.seeds)], manifest.plan.moduli)
    for i in range(shape.chunks):
        for stream in streams:
            stream.apply(shape.part(body, i), i, shape.length(i), -1)


def decode(body: Bytes, manifest: Manifest, size: int, federation: Federation) -> Aggregate:
    """Decode a sum over so many silos to their mean, or refuse one that cannot be theirs."""
    codec = Codec(manifest.schema, manifest.bounds, manifest.plan, manifest.chunk_parameters)
    return codec.decode(body, size, federation.noise.slack(size))


def next_model(
    federation: Federation, manifest: Manifest, means: Sequence[Aggregate], model: Tensors, state: Tensors
) -> tuple[Tensors, Tensors]:
    """Make the next model of a round's mean, or of its groups' means, and the next state of the server's optimiser."""
    mean = combine(means, manifest.schema, federation.policy.server)
    change = manifest.update is UpdateKind.DELTA
    return step(Optimiser.of(federation.policy), manifest.schema, model, mean, state, change=change)
