"""The tamper check: whether every hop added up and unmasked what it was given, and who lied if not.

It works per plane, in the field F_p of the plane's prime modulus, on **extended vectors**: the d coordinates that are
the parameters, then rho blinder coordinates. Everything that travels is extended. Silo i draws its blinders b_i and
masks all d + rho coordinates alike, and every hop adds up and unmasks all of them:

    c_i   = (x_i, b_i) + mask_{i,1} + ... + mask_{i,k} + (the aggregator's layer of i)      what silo i sends
    in_1  = sum_i c_i           in_{h+1} = out_h           out_h = in_h - sum_i mask_{i,h} + pad_h

When the hops have signed all of that, the silos toss a coin. It gives a_1..a_rho in F_p^d and with them, for an
extended vector v, the scalars ``l_j(v) = <a_j, v[:d]> + v[d + j]``. They are linear, so whatever holds between vectors
holds between scalars, and an error that was made before the coin was known goes unseen with probability 2 p^-rho at
most (`fold.py` says how the a_j are made, and why).

**Why the scalars say nothing.** From l(c_i) and all sigma_{i,h} = l(mask_{i,h}) anybody computes l of x_i and b_i plus
the aggregator's layer. That layer's sigma is not published, for nobody needs it, but the aggregator knows it, so it
hides nothing. The blinders do: l_j adds b_ij, which is uniform and used nowhere else, so l(x_i, b_i) is uniform too.
Together with the sum of the extended vectors, which the aggregator sees, the scalars of a cohort are uniform among
those that add up to l of that sum. A second coin over the same blinders would cancel them and give away
<a_j - a'_j, x_i>: one coin per attempt, and new blinders in every attempt. Two silos that answer under two coins give
away as much, because the aggregator has the sum of their blinders: one coin for the whole cohort (`ballot`).

**What it does not do.** A silo's sigma is believed until its seed is opened: a hop that alters the sum by e, with a
silo that adds l(e) to its sigma, passes. That silo could have sent x_i + e itself, if not with an e that was chosen
after the others' sum was known. And where a cohort is summed in groups, the scalars show who is in which: the groups'
sums are the only subsets that balance.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.fold import Fold as Fold
from silomix.runtime.core.numbers.fold import Scalars as Scalars
from silomix.runtime.core.numbers.fold import rho as rho
from silomix.runtime.core.numbers.fold import rhos as rhos
from silomix.runtime.core.numbers.masks import Rng
from silomix.runtime.core.numbers.plan import Plan

SHARE_BYTES = 32
"""A share is as long as the digest that commits to it, so that it can't be guessed from its commitment."""


def blinders(plan: Plan, rng: Rng) -> Scalars:
    """Draw a silo's blinder coordinates for one attempt: exactly uniform, by redrawing what lies beyond p."""
    return tuple(tuple(_uniform(p, rng) for _ in range(n)) for p, n in zip(plan.moduli, rhos(plan), strict=True))


def _uniform(p: int, rng: Rng) -> int:
    width = (p - 1).bit_length()
    while True:
        drawn = int.from_bytes(rng((width + 7) // 8), "little") & ((1 << width) - 1)
        if drawn < p:
            return drawn


def commit(share: bytes, silo: str, context: bytes) -> bytes:
    """Commit to a share of the coin before anybody shows one.

    `context` is what every hop of the chain has signed: manifest, cohort and roots. One honest hop signs that once, so
    honest silos toss the same coin about the same vectors, and a share serves no other attempt. The silo's name is
    in it so that nobody passes a copy of another's commitment, and later share, off as their own.
    """
    if len(share) != SHARE_BYTES:
        raise LocalFault(
            Reason.SHAPE_MISMATCH,
            f"a share of the coin has {SHARE_BYTES} bytes, not {len(share)}",
            found=len(share),
            expected=SHARE_BYTES,
        )
    return digest("tamper-commit", context, silo, share)


def ballot(context: bytes, commitments: Mapping[str, bytes]) -> bytes:
    """Return the digest of all commitments, which a silo signs with the share that it shows.

    A silo that commits to one share towards some and to another towards others would split the coin, and answers under
    two coins leak. Nobody answers before everybody has signed the same ballot.
    """
    return digest("tamper-ballot", context, *_pairs(commitments))


@dataclass(frozen=True)
class Share:
    """What a silo shows, signed, once it has the commitments of the whole cohort."""

    value: bytes = field(repr=False)
    ballot: bytes


def coin(
    context: bytes,
    cohort: Collection[str],
    commitments: Mapping[str, bytes],
    shares: Mapping[str, Share],
    early: bytes | None = None,
) -> bytes:
    """Combine the shares of a cohort, or name who keeps the coin from being tossed.

    `early` is what the commitments are bound to, if silos committed before there was a context: the attempt's manifest.

    Every silo of the cohort counts: if a missing share were skipped, colluders could look at the others' shares and
    choose among the coins that they get by showing theirs or not. Ballots that differ blame nobody here: the culprit is
    whoever signed two commitments, which the signer of the other ballot (`witness`) can show.
    """
    if not cohort:
        raise LocalFault(Reason.SHAPE_MISMATCH, "the coin of an empty cohort could be foreseen: wait for the cohort")
    for silo in sorted((commitments.keys() | shares.keys()) - set(cohort)):
        raise PeerFault(Reason.SHARE_MISMATCH, f"silo {silo} has no part in this coin", silo=silo)
    for silo, share in sorted(shares.items()):
        bound = context if early is None else early
        if len(share.value) != SHARE_BYTES or commit(share.value, silo, bound) != commitments.get(silo):
            raise PeerFault(
                Reason.SHARE_MISMATCH, f"silo {silo} showed a share of the coin that it had not committed to", silo=silo
            )
    if missing := sorted(set(cohort) - shares.keys()):
        raise PeerFault(
            Reason.SHARE_MISSING,
            f"unresponsive: {', '.join(missing)} did not show a share of the coin, so the round ends",
            silo=missing[0],
            missing=len(missing),
        )
    ours = ballot(context, commitments)
    for silo, share in sorted(shares.items()):
        if share.ballot != ours:
            raise PeerFault(
                Reason.SHARE_MISMATCH,
                f"silo {silo} was shown other commitments than we were: answer nothing, and compare them with it",
                witness=silo,
            )
    return combined(context, {silo: share.value for silo, share in shares.items()})


def combined(context: bytes, shares: Mapping[str, bytes]) -> bytes:
    """Return the coin that shares make. Whether they are those that were committed to, `coin` checks."""
    return digest("tamper-coin", context, *_pairs(shares))


def _pairs(by_silo: Mapping[str, bytes]) -> list[str | bytes]:
    return [part for silo in sorted(by_silo) for part in (silo, by_silo[silo])]


@dataclass(frozen=True)
class Submission:
    """The scalars that a silo publishes: of the extended vector that it sent, and of each mask in it."""

    silo: str
    sent: Scalars
    """l(c_i), over the d parameters and the blinder coordinates as they were sent, masked."""
    masks: tuple[Scalars, ...]
    """sigma_{i,h} for the hops in the chain's order, over all d + rho coordinates of the mask; not the aggregator's."""
    sent_at: Scalars = ()
    """Residues of c_i at the traps, if there are any."""


@dataclass(frozen=True)
class Passage:
    """The scalars that a hop publishes: of the extended vector that it took in and of the one that it sent on."""

    hop: str
    taken: Scalars
    """l(in_h), at the first hop over the sum of what the cohort sent."""
    sent: Scalars
    """l(out_h), over in_h without this hop's masks, and under its pad if it has one."""
    pad: Scalars | None = None
    """l of the pad's expansion, stated before the pad is shown, and recomputed by everybody afterwards."""
    taken_at: Scalars = ()
    sent_at: Scalars = ()
    """Residues at the traps."""


@dataclass(frozen=True)
class Arrival:
    """The scalars that the aggregator publishes. Without them the last hop could state any l(out_k) that balances."""

    node: str
    taken: Scalars
    """l over the extended vector that the last hop sent, still under the aggregator's layer."""
    taken_at: Scalars = ()
    """Residues at the traps."""


@dataclass(frozen=True)
class Transcript:
    """All that is published in one attempt, signatures checked: what everybody verifies."""

    submissions: tuple[Submission, ...]
    passages: tuple[Passage, ...]
    """In the chain's order."""
    arrival: Arrival


class EquationKind(StrEnum):
    """What an equation is about, and so what evidence settles it."""

    EDGE = "edge"
    """What was sent against what was taken in: the receiver shows the signed bodies."""
    HOP = "hop"
    """What was taken in against what was sent on: the hop opens the seeds of whoever misstated a sigma."""
    TRAP = "trap"
    """No equation: the hop opens the seed of a silo that committed to another mask at a trap."""


@dataclass(frozen=True)
class Finding:
    """An equation that does not hold in a plane. It accuses nobody yet: `arbitrate` does, with evidence."""

    kind: EquationKind
    where: str
    """Who owes the evidence: the node that the edge leads to, or the hop."""
    plane: int


@dataclass(frozen=True)
class _Equation:
    """`where` answers for a total that has to be the sum of what others claim."""

    kind: EquationKind
    where: str
    total: Scalars
    claims: Mapping[str, Scalars]

    def failing(self, plan: Plan, claims: Mapping[str, Scalars]) -> list[int]:
        """Return the planes in which these claims do not add up to the total."""
        summed = total(plan, claims.values())
        return [plane for plane, row in enumerate(self.total) if row != summed[plane]]


def _equations(plan: Plan, transcript: Transcript) -> Iterator[_Equation]:
    """Yield the equations along the chain, from the silos to the aggregator.

    At a trap, what was sent against what was taken in is one more form of the vector. What a hop removed there is
    secret: it has to prove it.
    """
    claims = {s.silo: joined(s.sent, s.sent_at) for s in transcript.submissions}
    for h, passage in enumerate(transcript.passages):
        yield _Equation(EquationKind.EDGE, passage.hop, joined(passage.taken, passage.taken_at), claims)
        added = () if passage.pad is None else (passage.pad,)
        removed = total(plan, (passage.taken, *added, negative(plan, passage.sent)))
        yield _Equation(EquationKind.HOP, passage.hop, removed, {s.silo: s.masks[h] for s in transcript.submissions})
        claims = {passage.hop: joined(passage.sent, passage.sent_at)}
    arrival = transcript.arrival
    yield _Equation(EquationKind.EDGE, arrival.node, joined(arrival.taken, arrival.taken_at), claims)


def joined(scalars: Scalars, residues: Scalars) -> Scalars:
    """Put the residues at the traps behind the scalars, plane by plane."""
    return tuple(a + b for a, b in zip(scalars, residues, strict=True)) if residues else scalars


def verify(plan: Plan, cohort: Collection[str], chain: Sequence[str], transcript: Transcript) -> list[Finding]:
    """Check every equation and return those that fail, in the chain's order, so that the first one comes first.

    sum_i l(c_i) = l(in_1), l(out_h) = l(in_{h+1}) up to the aggregator, l(in_h) + l(pad_h) - l(out_h) = sum_i
    sigma_{i,h}.
    The sum may be used only if the list is empty. The caller waits until all have published; scalars that are not
    canonical residues are refused, with the sender's name, for there has to be one way only to state a value.
    """
    published = (sorted(s.silo for s in transcript.submissions), [p.hop for p in transcript.passages])
    if published != (sorted(cohort), list(chain)):
        raise LocalFault(
            Reason.SHAPE_MISMATCH,
            f"scalars were published by {published[0]} and {published[1]}: wait for {sorted(cohort)} and {list(chain)}",
        )
    names = [*cohort, *chain, transcript.arrival.node]
    if len(set(names)) != len(names):
        raise LocalFault(Reason.SHAPE_MISMATCH, f"two nodes share a name in {names}, so nobody could be named by it")
    for s in transcript.submissions:
        if len(s.masks) != len(chain):
            raise PeerFault(
                Reason.WRONG_LENGTH,
                f"{s.silo} published scalars of {len(s.masks)} masks for {len(chain)} hops",
                node=s.silo,
                found=len(s.masks),
                expected=len(chain),
            )
        for scalars in (s.sent, *s.masks):
            check_scalars(plan, s.silo, scalars)
    for p in transcript.passages:
        for scalars in (p.taken, p.sent, *(() if p.pad is None else (p.pad,))):
            check_scalars(plan, p.hop, scalars)
    check_scalars(plan, transcript.arrival.node, transcript.arrival.taken)
    return [
        Finding(equation.kind, equation.where, plane)
        for equation in _equations(plan, transcript)
        for plane in equation.failing(plan, equation.claims)
    ]


def arbitrate(plan: Plan, transcript: Transcript, finding: Finding, opened: Mapping[str, Scalars]) -> tuple[str, ...]:
    """Name who lied where an equation fails, from the evidence that `finding.where` shows.

    `opened` holds l recomputed from evidence that a third party can check: at a HOP finding over the mask of each seed
    that the hop opens, by silo; at an EDGE finding over each signed body that the receiver shows, by sender. An honest
    node knows the truth of every claim and opens the false ones, so no honest pair is ever opened:

    - whose claim differs from what was opened, lied;
    - if the equation fails even with the opened values in place of the claims, so did `finding.where`: it claims a
      total that its own evidence does not explain. That names it as well when it opens nothing, or an honest claim.
    """
    for equation in _equations(plan, transcript):
        if (equation.kind, equation.where) == (finding.kind, finding.where):
            break
    else:
        raise LocalFault(
            Reason.SHAPE_MISMATCH, f"the transcript has no {finding.kind} at {finding.where}", where=finding.where
        )
    truth = {name: opened.get(name, claim) for name, claim in equation.claims.items()}
    liars = [name for name, claim in equation.claims.items() if truth[name] != claim]
    return (*liars, equation.where) if equation.failing(plan, truth) else tuple(liars)


def total(plan: Plan, terms: Collection[Scalars]) -> Scalars:
    """Add scalars up, which is what the forms of a sum of vectors are."""
    return tuple(
        tuple(sum(column) % p for column in zip(*(term[plane] for term in terms), strict=True))
        for plane, p in enumerate(plan.moduli)
    )


def negative(plan: Plan, scalars: Scalars) -> Scalars:
    """Return 0 less each scalar."""
    return tuple(tuple(-x % p for x in row) for p, row in zip(plan.moduli, scalars, strict=True))


def check_scalars(plan: Plan, node: str, scalars: Scalars) -> None:
    """Refuse scalars that are too few, too many or not reduced, and name whose they are."""
    found = tuple(map(len, scalars))
    if found != rhos(plan):
        raise PeerFault(
            Reason.WRONG_LENGTH, f"{node}: the planes hold {rhos(plan)} scalars each, not {found}", node=node
        )
    for plane, (p, row) in enumerate(zip(plan.moduli, scalars, strict=True)):
        if not all(0 <= x < p for x in row):
            raise PeerFault(
                Reason.RESIDUE_RANGE, f"{node}: a scalar of plane {plane} is not below {p}", node=node, plane=plane
            )
