"""The two-phase release: a padded sum passes first, and is readable only when every hop has shown its pad.

Each hop adds a pad to what it passes on, and signs a `Trail`: what came in, what went out, the digest of its pad. When
the vector has come through, `Ready` puts the trails together. Its digest is signed by every hop, once for an attempt,
and last by the aggregator. A hop that sees all signatures writes down for which silos it releases this model, and then
shows 32 bytes. Before that moment nothing can be read, so an attempt that fails leaves the model free.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from silomix.runtime.core.digest import digest, frame
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity, verify

Signatures = tuple[tuple[str, bytes], ...]
"""Who signed, with what, in the order of the chain; the aggregator stands last."""


@dataclass(frozen=True)
class PadContext:
    """What a pad is bound to: it serves one cohort, in one grouping, of one attempt, at one hop."""

    cohort: bytes
    grouping: bytes
    hop: str
    chunk_parameters: int

    def info(self) -> bytes:
        """Encode the context for HKDF."""
        return frame("pad", self.cohort, self.grouping, self.hop, self.chunk_parameters)


def pad_digest(pad: Secret) -> bytes:
    """What a hop commits to before it shows its pad."""
    return digest("pad", pad.value)


_NO_PAD = pad_digest(Secret(bytes(SEED_BYTES)))
"""With nothing but zeros no stream is made, and the sum under them could never be read."""


@dataclass(frozen=True)
class Trail:
    """What a hop signs of its part in an attempt."""

    hop: str
    cohort: bytes
    """The digest of the cohort, which covers the manifest."""
    grouping: bytes
    """The seal of the grouping, or nothing where there is none."""
    came: bytes
    """Root of what came in: at hop 1 `bodies_root`, at the others what the hop before sent."""
    sent: bytes
    """Root of what went out."""
    pad: bytes
    """Digest of the pad that lies on what went out."""
    signature: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """What the hop signs."""
        return digest("release", self.hop, self.cohort, self.grouping, self.came, self.sent, self.pad)

    def signed(self, identity: Identity) -> "Trail":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))


def bodies_root(roots: Iterable[bytes]) -> bytes:
    """Root of what came in at hop 1: the roots of the bodies, in the order of the cohort."""
    parts = tuple(roots)
    return digest("bodies", len(parts), *parts)


@dataclass(frozen=True)
class Ready:
    """All that a release is about. Every hop signs its digest once, and the aggregator signs last."""

    manifest: bytes
    model: bytes
    """The manifest names it too; here it stands apart, so that the signatures show by themselves what they bind."""
    trails: tuple[Trail, ...]
    check: bytes = b""
    """At level malicious the digest of the tamper check's transcript. While it is empty, `digest` is what the check is
    about, and nobody signs it for a release."""

    @cached_property
    def digest(self) -> bytes:
        """What is signed."""
        parts: list[str | bytes] = []
        for trail in self.trails:
            parts += [trail.hop, trail.came, trail.sent, trail.pad]
        if self.check:
            parts.append(self.check)
        return digest("ready", self.manifest, self.model, self.cohort, self.grouping, len(self.trails), *parts)

    @property
    def cohort(self) -> bytes:
        """The digest of the cohort."""
        return self.trails[0].cohort

    @property
    def grouping(self) -> bytes:
        """The seal of the grouping."""
        return self.trails[0].grouping

    @property
    def root(self) -> bytes:
        """Root of what left the chain."""
        return self.trails[-1].sent

    def pad_context(self, hop: str, chunk_parameters: int) -> PadContext:
        """What a hop's pad is bound to."""
        return PadContext(self.cohort, self.grouping, hop, chunk_parameters)


def check_trails(trails: tuple[Trail, ...], cohort: bytes, chain: tuple[str, ...], federation: Federation) -> None:
    """Check the trails of the first hops of a chain: signed, about one cohort, and each where the one before ended.

    Nobody signs for a release that could never be read: its model would be bound to a sum that nobody has.
    """
    if not trails or tuple(trail.hop for trail in trails) != chain[: len(trails)]:
        raise PeerFault(Reason.WRONG_CHAIN, "the trails are not those of the chain's hops, in its order")
    for before, trail in zip((None, *trails), trails, strict=False):
        verify(federation.member(trail.hop).key, trail.digest, trail.signature, trail.hop)
        if trail.cohort != cohort or trail.grouping != trails[0].grouping:
            raise PeerFault(
                Reason.WRONG_MANIFEST, f"{trail.hop} released for another cohort or grouping", peer=trail.hop
            )
        if trail.pad == _NO_PAD:
            raise PeerFault(Reason.WRONG_PAD, f"the pad of {trail.hop} is nothing but zeros", peer=trail.hop)
        if before is not None and trail.came != before.sent:
            raise PeerFault(
                Reason.ROOT_MISMATCH, f"{trail.hop} took in something else than {before.hop} sent", peer=trail.hop
            )


def check_ready(ready: Ready, cohort: bytes, chain: tuple[str, ...], federation: Federation) -> None:
    """Check that every hop of the chain has passed this cohort's sum on."""
    if len(ready.trails) != len(chain):
        raise PeerFault(Reason.WRONG_CHAIN, f"{len(ready.trails)} trails came of a chain of {len(chain)} hops")
    check_trails(ready.trails, cohort, chain, federation)


def check_agreed(agreed: bytes, signatures: Signatures, chain: tuple[str, ...], federation: Federation) -> None:
    """Check that every hop of the chain and the aggregator have signed the same release."""
    if tuple(name for name, _ in signatures) != (*chain, federation.aggregator.name):
        raise PeerFault(Reason.BAD_SIGNATURE, "a release needs the signature of every hop, and of the aggregator")
    for name, signature in signatures:
        verify(federation.member(name).key, agreed, signature, name)


def check_pads(ready: Ready, pads: Mapping[str, Secret]) -> None:
    """Check that these are the pads that the hops committed to."""
    for trail in ready.trails:
        pad = pads.get(trail.hop)
        if pad is None or pad_digest(pad) != trail.pad:
            raise PeerFault(Reason.WRONG_PAD, f"the pad of {trail.hop} is not the one on its output", peer=trail.hop)
