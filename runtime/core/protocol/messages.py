"""What nodes say to each other, as frozen values with the digest that each signature covers.

The fields and their order are those of proto/silomix/v1, which also says who checks what; runtime/net/wire.py converts.
Chunks are not here: they are bytes on their way, and only their digests matter.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from silomix.runtime.core.digest import digest, fast_hash
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import MaskContext, Secret
from silomix.runtime.core.numbers.plan import Granularity, Plan
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.release import Ready, Signatures, Trail


@dataclass(frozen=True)
class RoundKey:
    """A key of a hop or the aggregator for one silo and one attempt; in groups, the aggregator's is for all silos."""

    hop: str
    silo: str
    round: int
    attempt: int
    public_key: bytes
    last_released: int
    signature: bytes = b""

    def digest(self, federation: bytes, head: bytes) -> bytes:
        """What its owner signs: the key serves one history of one federation."""
        parts = (self.hop, self.silo, self.round, self.attempt, self.public_key, self.last_released)
        return digest("round-key", federation, head, *parts)

    def signed(self, identity: Identity, federation: bytes, head: bytes) -> "RoundKey":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest(federation, head)))


@dataclass(frozen=True)
class Fence:
    """A hop's word that nothing was released for an attempt, and nothing will be."""

    hop: str
    round: int
    attempt: int
    manifest: bytes
    signature: bytes = b""

    def digest(self, federation: bytes) -> bytes:
        """What the hop signs. The manifest's digest covers the chain."""
        return digest("fence", federation, self.hop, self.round, self.attempt, self.manifest)

    def signed(self, identity: Identity, federation: bytes) -> "Fence":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest(federation)))


@dataclass(frozen=True)
class Manifest:
    """Everything that one attempt at a round is about."""

    federation: bytes
    head: bytes
    """The newest record of the round log: the history that this attempt goes on from."""
    applied: int
    """Rounds of that history that were applied: the draw of silos depends on it, and not on the round's number."""
    round: int
    attempt: int
    earlier: tuple[bytes, ...]
    """Digests of the manifests of all earlier attempts at this round."""
    model: bytes
    state: bytes
    """Digest of the state of the server's optimiser."""
    schema: Schema
    plan: Plan
    bounds: tuple[float, ...]
    update: UpdateKind
    granularity: Granularity
    chain: tuple[str, ...]
    hop_keys: tuple[RoundKey, ...]
    aggregator_keys: tuple[RoundKey, ...]
    group_size: int
    invited: tuple[str, ...]
    minimum_cohort: int
    chunk_parameters: int
    deadline_s: int
    bound: "Bond | None" = None
    """Proof of a release on this model that all have signed for: then it is for no other silos. None: it is free."""
    fences: tuple[Fence, ...] = ()
    signature: bytes = field(default=b"", compare=False)

    @cached_property
    def digest(self) -> bytes:
        """What names the attempt everywhere else, and what the aggregator signs."""
        keys: list[bytes | int] = []
        for group in (self.hop_keys, self.aggregator_keys):
            keys.append(len(group))
            for key in group:
                keys += [key.digest(self.federation, self.head), key.signature]
        fences: list[bytes | int] = [len(self.fences)]
        for fence in self.fences:
            fences += [fence.digest(self.federation), fence.signature]
        return digest(
            "manifest",
            self.federation,
            self.head,
            self.applied,
            self.round,
            self.attempt,
            len(self.earlier),
            *self.earlier,
            self.model,
            self.state,
            self.schema.digest,
            self.plan.digest,
            len(self.bounds),
            *(struct.pack("<d", b) for b in self.bounds),
            str(self.update),
            str(self.granularity),
            len(self.chain),
            *self.chain,
            *keys,
            self.group_size,
            len(self.invited),
            *self.invited,
            self.minimum_cohort,
            self.chunk_parameters,
            self.deadline_s,
            b"" if self.bound is None else self.bound.digest(self.model),
            *fences,
        )

    @property
    def bound_to(self) -> tuple[str, ...]:
        """The silos that this model is bound to; nobody if it is free."""
        return () if self.bound is None else self.bound.silos

    def signed(self, identity: Identity) -> "Manifest":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))

    def context(self, layer: int) -> MaskContext:
        """What the masks of a layer are bound to."""
        return MaskContext(self.digest, layer, self.chunk_parameters)

    def layer(self, name: str) -> int:
        """The layer of a node: its place in the chain, or 0 for the aggregator."""
        return self.chain.index(name) + 1 if name in self.chain else 0

    def key_for(self, hop: str, silo: str) -> RoundKey | None:
        """The key that a silo seals its seed for a hop to, or for the aggregator."""
        keys = self.hop_keys if hop in self.chain else self.aggregator_keys
        return next((k for k in keys if k.hop == hop and k.silo in (silo, "")), None)


@dataclass(frozen=True)
class SealedSeed:
    """A seed sealed to the node that takes its mask off, and the commitment to it."""

    recipient: str
    sealed: bytes
    commitment: bytes


@dataclass(frozen=True)
class Header:
    """Who submits, to what, under which masks."""

    silo: str
    manifest: bytes
    seeds: tuple[SealedSeed, ...]
    chunks: int
    signature: bytes = b""
    coin: bytes = b""
    """At level malicious the commitment to the silo's share of the coin: so the cohort fixes all of them."""

    @cached_property
    def digest(self) -> bytes:
        """What the silo signs, and what a cohort names a body by."""
        seeds: list[str | bytes] = []
        for seed in self.seeds:
            seeds += [seed.recipient, seed.sealed, seed.commitment]
        coin = (self.coin,) if self.coin else ()
        return digest("header", self.silo, self.manifest, len(self.seeds), *seeds, self.chunks, *coin)

    def signed(self, identity: Identity) -> "Header":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))


@dataclass(frozen=True)
class Evidence:
    """Proof that a silo sealed garbage to a node: the key that was made for this silo and attempt, opened.

    It opens what this silo has sealed to this node in this attempt, and nothing else.
    """

    manifest: bytes
    recipient: str
    silo: str
    header: bytes
    private: bytes = field(repr=False)

    @classmethod
    def of(cls, manifest: bytes, recipient: str, header: Header, key: Secret) -> "Evidence":
        """Open a key. It is copied: the original is overwritten when the attempt is over."""
        return cls(manifest, recipient, header.silo, header.digest, bytes(bytearray(key.value)))


class Accusation(PeerFault):
    """A refusal of what a silo sealed, with the evidence that anybody can check."""

    def __init__(self, evidence: Evidence) -> None:
        """The sentence is for people; what counts is the evidence."""
        super().__init__(
            Reason.SEAL_BROKEN,
            f"{evidence.silo} sealed a seed to {evidence.recipient} that does not open, or is not the one committed to",
            peer=evidence.silo,
        )
        self.evidence = evidence


@dataclass(frozen=True)
class Receipt:
    """Hop 1's word that a body is complete, verified and durable."""

    silo: str
    manifest: bytes
    root: bytes
    hop: str
    signature: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """What hop 1 signs."""
        return digest("receipt", self.silo, self.manifest, self.root, self.hop)


@dataclass(frozen=True)
class Participant:
    """A silo in the cohort, and which header of it."""

    silo: str
    header: bytes


@dataclass(frozen=True)
class Cohort:
    """The silos whose bodies are in the sum, as hop 1 signs them."""

    manifest: bytes
    participants: tuple[Participant, ...]
    signature: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """What hop 1 signs."""
        parts: list[str | bytes] = []
        for p in self.participants:
            parts += [p.silo, p.header]
        return digest("cohort", self.manifest, len(self.participants), *parts)

    @property
    def silos(self) -> tuple[str, ...]:
        """The names."""
        return tuple(p.silo for p in self.participants)


@dataclass(frozen=True)
class Bond:
    """Proof that a model is bound to a cohort: all hops of a chain, and the aggregator, have signed for its release.

    Some of them may have shown their pads. Whoever has only this finds out for which silos, and on which model.
    """

    manifest: bytes
    """Digest of the manifest of that attempt."""
    participants: tuple[Participant, ...]
    grouping: bytes
    """The seal of the grouping, or nothing where there was none."""
    trails: tuple[Trail, ...]
    """What each hop did, in the order of the chain, without cohort and signature."""
    signatures: tuple[bytes, ...]
    """Those of the hops in the same order, and the aggregator's."""
    check: bytes = b""
    """At level malicious the digest of the tamper check's transcript."""

    @classmethod
    def of(cls, cohort: Cohort, ready: Ready, signatures: Signatures) -> "Bond":
        """Make the proof of a release that all have signed for."""
        bare = tuple(replace(trail, cohort=b"", grouping=b"", signature=b"") for trail in ready.trails)
        signed = tuple(s for _, s in signatures)
        return cls(ready.manifest, cohort.participants, ready.grouping, bare, signed, ready.check)

    @property
    def silos(self) -> tuple[str, ...]:
        """The names."""
        return tuple(p.silo for p in self.participants)

    @property
    def chain(self) -> tuple[str, ...]:
        """The hops that signed."""
        return tuple(trail.hop for trail in self.trails)

    def signed_by(self, aggregator: str) -> Signatures:
        """Put names to the signatures."""
        return tuple(zip((*self.chain, aggregator), self.signatures, strict=False))

    def agreed(self, model: bytes) -> bytes:
        """What all signed, if it was on this model."""
        cohort = Cohort(self.manifest, self.participants).digest
        trails = tuple(replace(trail, cohort=cohort, grouping=self.grouping) for trail in self.trails)
        return Ready(self.manifest, model, trails, self.check).digest

    def digest(self, model: bytes) -> bytes:
        """What the manifest has of it."""
        return digest("bond", self.agreed(model), len(self.signatures), *self.signatures)


@dataclass(frozen=True)
class Grouping:
    """Who is in which group, as hop 1 signs it for the other hops."""

    groups: tuple[int, ...]
    signature: bytes = b""

    def digest(self, cohort: bytes) -> bytes:
        """What hop 1 signs."""
        return digest("grouping", cohort, len(self.groups), *self.groups)

    @property
    def seal(self) -> bytes:
        """What the aggregator is told of it: nothing that it could find the groups by, even if there are few."""
        return digest("grouping-seal", self.signature)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many silos each group has."""
        return tuple(self.groups.count(g) for g in range(max(self.groups, default=-1) + 1))


@dataclass(frozen=True)
class Group:
    """A group without names: what the aggregator gets of it."""

    size: int
    seeds: tuple[SealedSeed, ...]


def chunk_digest(index: int, first: int, planes: Iterable[bytes | memoryview]) -> bytes:
    """Digest of one chunk, of which roots are made. Nearly all that is hashed is chunks."""
    return digest("chunk", index, first, *(fast_hash(plane) for plane in planes))


def body_root(chunks: list[bytes]) -> bytes:
    """Root of a body, or of a vector between two hops: what its sender signs."""
    return digest("body", len(chunks), *chunks)


def trailer_digest(header: bytes, root: bytes) -> bytes:
    """What a silo signs at the end of its body."""
    return digest("trailer", header, root)


def delivery_digest(name: str, manifest: bytes, root: bytes) -> bytes:
    """What a receiver signs for having got it all, and for its having come through to the aggregator."""
    return digest("delivery", name, manifest, root)
