"""What the tamper check and the traps cost by count, before anything runs: bytes, passes, multiplications, soundness.

How long these take on a machine is what `silomix bench check` measures.
"""

from dataclasses import dataclass
from math import log2

from silomix.runtime.core.numbers.fold import below, rhos
from silomix.runtime.core.numbers.plan import Plan
from silomix.runtime.core.numbers.tamper import SHARE_BYTES
from silomix.runtime.core.numbers.traps import POINT_BYTES, detection, proof_bytes

DIGEST_BYTES = 32
SIGNATURE_BYTES = 64
STATED_BYTES = 3
"""Of a scalar that is published: no modulus is above 2^20."""
FRACTIONS = (0.001, 0.01, 0.1)
"""Of the parameters, that a hop changes: for which a trap's probability of detection is told."""


@dataclass(frozen=True)
class CheckCost:
    """The tamper check in one attempt."""

    rhos: tuple[int, ...]
    error_bits: tuple[float, ...]
    """For each plane b, where an error passes with probability 2^-b at most."""
    blinder_bytes: int
    """That every vector is longer by."""
    silo_bytes: int
    """That a silo sends for the check beside its blinders, framing aside."""
    silo_passes: int
    """Vectors that a silo folds: what it sent, and its mask for each hop, which it expands again."""
    hop_passes: int
    """Vectors that a hop folds: what came in, what went out, and its pad."""


@dataclass(frozen=True)
class TrapCost:
    """So many traps in one attempt."""

    traps: int
    silo_bytes: int
    """Commitments to its masks for each hop, and what it sent at the traps."""
    hop_bytes: int
    """Proofs, the commitments to its pad, and what came in and went out at the traps."""
    silo_multiplications: int
    """On the curve, to commit to all masks."""
    hop_multiplications: int
    """To make the commitments of all silos again, and to prove."""
    verifier_multiplications: int
    """To check the proofs of all hops."""
    detection: dict[str, float]
    """Probability that a change is found, by the fraction of those parameters that it touches among which traps are
    drawn; `one` is a single one."""


def check_cost(plan: Plan, hops: int) -> CheckCost:
    """Count what the check takes of a plan at level malicious."""
    found = rhos(plan)
    signed = DIGEST_BYTES + (SHARE_BYTES + DIGEST_BYTES) + (1 + hops) * STATED_BYTES * sum(found)
    return CheckCost(
        rhos=found,
        error_bits=tuple(n * log2(below(p)) - 1 for n, p in zip(found, plan.moduli, strict=True)),
        blinder_bytes=sum(width * ((n + 7) // 8) for n, width in zip(found, plan.widths, strict=True)),
        silo_bytes=signed + 3 * SIGNATURE_BYTES,  # the commitment, the share with its ballot, the scalars
        silo_passes=1 + hops,
        hop_passes=3,
    )


def trap_cost(plan: Plan, silos: int, hops: int, parameters: int | None, traps: int) -> TrapCost:
    """Count what traps take; `parameters` are those among which they are drawn, if that is known.

    A hop's pad counts as one more mask, so there are silos + 1 quotients to prove among.
    """
    proofs = traps * len(plan.moduli)
    terms = silos + 1
    return TrapCost(
        traps=traps,
        silo_bytes=proofs * (hops * POINT_BYTES + STATED_BYTES),
        hop_bytes=proofs * (proof_bytes(terms) + POINT_BYTES + 2 * STATED_BYTES),
        silo_multiplications=2 * hops * proofs,
        hop_multiplications=proofs * (2 * terms + 2 * terms + 1),
        verifier_multiplications=hops * proofs * (2 * terms + 2),
        detection={
            **({} if parameters is None else {"one": detection(1 / parameters, traps)}),
            **{f"{fraction:g}": detection(fraction, traps) for fraction in FRACTIONS},
        },
    )
