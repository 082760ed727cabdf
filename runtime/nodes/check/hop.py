"""A hop's part in the tamper check: scalars of what passed through it, proofs, and the truth of what others claim."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import EquationKind, Scalars
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.check.proofs import false_commitments, prove
from silomix.runtime.core.protocol.check.said import CheckTranscript, Subject
from silomix.runtime.core.protocol.check.trapped import Trapped, Traps
from silomix.runtime.core.protocol.release import Trail
from silomix.runtime.nodes.passage import SumPassage

Names = tuple[str, ...]


def check_passed(passage: SumPassage, own: Trail) -> None:
    """Refuse to speak of another vector than this hop has signed for, or of a part: after a restart all comes anew.

    Whatever it stated then would be false, and it would be the one who lied.
    """
    if not passage.sent_root:
        raise PeerFault(Reason.BUSY, "this hop was started again, and what passed here is on its way once more")
    if (passage.came, passage.sent_root) != (own.came, own.sent):
        raise PeerFault(
            Reason.WRONG_SEQUENCE, "this hop was started again, and something else came than it has signed for"
        )


def measure(passage: SumPassage, coin: bytes, own: Trail) -> tuple[Scalars, ...]:
    """Fold what came in, what went out, and the pad."""
    cover = passage.cover
    if passage.taken is None or cover is None:
        raise PeerFault(Reason.WRONG_SEQUENCE, "this hop has passed nothing on")
    check_passed(passage, own)
    return tuple(scalars_of(coin, passage.layout, [passage.taken, passage.sum], [(cover.pad, cover.context)]))


def trapped(passage: SumPassage, coin: bytes, policy: Policy) -> Trapped:
    """State what came in and went out at the traps, and commit to the pad there."""
    cover = passage.cover
    assert passage.taken is not None
    assert cover is not None
    return Traps.drawn(coin, passage.manifest, policy).of_hop(passage.taken, passage.sum, cover.pad, cover.context)


def proven(passage: SumPassage, subject: Subject, check: CheckTranscript, policy: Policy) -> tuple[bytes, Names]:
    """Prove what was removed at the traps, or name the silos whose commitments keep this hop from it."""
    manifest, cover = passage.manifest, passage.cover
    if cover is None:
        raise PeerFault(Reason.WRONG_SEQUENCE, "this hop has passed nothing on")
    traps, context = Traps.drawn(check.coin, manifest, policy), manifest.context(passage.layer)
    sealed = {p.silo: (passage.seed_of(p.header), context) for p in subject.cohort.participants}
    if false := false_commitments(traps, check, passage.layer, sealed):
        return b"", false
    name, pad = manifest.chain[passage.layer - 1], (cover.pad, cover.context)
    return prove(traps, check, name, manifest.chain, sealed, pad, os.urandom), ()


def truth(
    passage: SumPassage,
    bodies: Mapping[str, Path],
    kind: EquationKind,
    subject: Subject,
    coin: bytes,
    policy: Policy,
) -> tuple[tuple[str, Scalars], ...]:
    """Find out what is true of others' claims: of the masks of all silos, or of what they sent, one after the other."""
    shape, silos = passage.layout, subject.cohort.silos
    if kind is EquationKind.HOP:
        context = passage.manifest.context(passage.layer)
        secrets = [(passage.seed_of(p.header), context) for p in subject.cohort.participants]
        return tuple(zip(silos, scalars_of(coin, shape, (), secrets), strict=True))
    check_passed(passage, subject.ready.trails[passage.layer - 1])
    names = silos if passage.layer == 1 else (passage.manifest.chain[passage.layer - 2],)
    traps = Traps.drawn(coin, passage.manifest, policy)
    return tuple((name, traps.forms([vector_of(passage, bodies, name)])[0]) for name in names)


def vector_of(passage: SumPassage, bodies: Mapping[str, Path], name: str) -> Bytes:
    """The vector that came from a silo, at hop 1, or from the hop before."""
    if passage.layer == 1:
        body: Bytes = np.fromfile(bodies[name], np.uint8)
        return body
    assert passage.taken is not None
    return passage.taken
