"""Checks that were recorded, once for all tests: an honest one, and lies, from which evidence is forged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from silomix.attacks.tamper.lies import Honest
from silomix.attacks.tamper.registry import CommitsToOtherMask, StatesFalseScalars, silent_at
from silomix.attacks.tamper.ring import AGGREGATOR, Ring, federation, identity
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.check.blame import Case, Defence
from silomix.runtime.core.protocol.check.said import CheckTranscript, Statement, Subject
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Manifest

PLAIN = federation(4, 2)
"""The fourth silo says nothing: it is invited, and not in the cohort."""
TRAPPED = federation(3, 2, traps=1)
FIRST, LAST = PLAIN.chain


@dataclass(frozen=True)
class Recorded:
    """All that was signed in a check in which nobody lied, the sum's pads, and the vector that left the chain."""

    f: Federation
    manifest: Manifest
    subject: Subject
    check: CheckTranscript
    pads: dict[str, bytes]
    vector: Bytes


def _silent() -> dict[str, Honest]:
    return {"silo-4": silent_at("submit")("silo-4", Random(0))}


def _recorded(ring: Ring) -> Recorded:
    transcript, vector = ring.run().lead.sums[1, 1]
    assert transcript.check is not None
    assert not ring.verdicts
    pads = {hop: pad.value for hop, pad in zip(ring.f.chain, transcript.pads, strict=True)}
    return Recorded(ring.f, transcript.manifest, transcript.subject, transcript.check, pads, vector)


@cache
def honest() -> Recorded:
    """A check without traps."""
    return _recorded(Ring(_silent(), f=PLAIN))


@cache
def trapped() -> Recorded:
    """A check with a trap, which both hops have proved."""
    return _recorded(Ring(f=TRAPPED))


def _case(ring: Ring) -> Case:
    verdict = ring.run().verdicts[0]
    assert verdict.culprit == "silo-2"
    return verdict.case


class _Keeps(Honest):
    """Keeps what it should forget: the keys that a hop made for the silos."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.ring: Ring | None = None

    def removes(self, silos: Sequence[str]) -> Sequence[str]:
        """Copy the keys of the first attempt before they are overwritten."""
        assert self.ring is not None
        made = self.ring.hops[FIRST].core.keys.get((1, 1), {})
        self.keys |= {silo: bytes(bytearray(key.value)) for silo, key in made.items()}
        return silos


@cache
def _false_mask() -> tuple[Case, dict[str, bytes]]:
    keeps = _Keeps()
    lie: Honest = StatesFalseScalars("silo-2", Random(0))
    keeps.ring = Ring({**_silent(), "silo-2": lie, FIRST: keeps}, f=PLAIN)
    return _case(keeps.ring), keeps.keys


def false_mask() -> Case:
    """What shows that the second silo has stated other scalars of its mask for the first hop."""
    return _false_mask()[0]


def key_of(silo: str) -> bytes:
    """The key that the first hop has made for a silo, in the attempt of `false_mask`."""
    return _false_mask()[1][silo]


@cache
def false_commitment() -> Case:
    """What shows that the second silo has committed to another mask at a trap than it sealed to the last hop."""
    return _case(Ring({"silo-2": CommitsToOtherMask("silo-2", Random(0))}, f=TRAPPED))


def put(check: CheckTranscript, one: Statement) -> CheckTranscript:
    """The check, in which somebody has said something else."""
    return replace(check, statements=tuple(one if said.name == one.name else said for said in check.statements))


def forged(check: CheckTranscript, name: str, lots: Sequence[int]) -> CheckTranscript:
    """The check, in which some of somebody's lots of scalars are other ones, under the signature that was there."""
    one = check.of(name)
    scalars = list(one.scalars)
    for lot in lots:
        (first, *row), *planes = scalars[lot]
        scalars[lot] = (((first + 1) % PLAIN.plan.moduli[0], *row), *planes)
    return put(check, replace(one, scalars=tuple(scalars)))


def lied(check: CheckTranscript, name: str, lots: Sequence[int]) -> CheckTranscript:
    """The same, and it has signed that."""
    made = forged(check, name, lots)
    return put(made, made.of(name).signed(identity(name)))


def at_hop(check: CheckTranscript) -> CheckTranscript:
    """A silo lies about a mask: the equation of the first hop fails."""
    return lied(check, "silo-2", [1])


def at_edge(check: CheckTranscript) -> CheckTranscript:
    """A silo lies about its body: the equation between the silos and the first hop fails."""
    return lied(check, "silo-2", [0])


def at_end(check: CheckTranscript, liar: str = LAST) -> CheckTranscript:
    """The last hop, or the aggregator, lies about what passed between them, and nothing else fails."""
    return lied(check, liar, [0] if liar == AGGREGATOR else [1, 2])


def again(defence: Defence | None, **changes: object) -> Defence:
    """A defence that its node has signed, with something else in it."""
    assert defence is not None
    made: Defence = replace(defence, **changes)  # type: ignore[arg-type]
    return made.signed(identity(made.node))
