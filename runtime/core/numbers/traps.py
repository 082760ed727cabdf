"""The paper's traps: zero-knowledge proofs that a hop took off exactly its masks, at a few parameters.

The paper has the servers of a MixNet prove what they did with some parameters only, because a proof for each is dear.
Here a hop adds up and takes masks off instead of shuffling, and so this is what it proves. For a parameter that is a
trap, in a plane of modulus m:

    x_1..x_n   the masks of the n silos for this hop, each in 0..m-1; the hop's own pad counts as one more, negated
    R          what the hop took off, mod m: public, since it is the difference of two vectors whose roots were signed
    C_i        = x_i G + r_i H, silo i's Pedersen commitment to x_i; r_i follows from the seed sealed to the hop
    claim      x_1 + ... + x_n = R + q m  for some q in 0..n-1

The coin draws the traps when every vector is fixed by signed roots and every seed by its commitment, so a hop does not
know beforehand where it may lie. Then the silos commit. The hop has the seeds, so it makes each C_i again; if one
differs, the sealed seed is evidence against the silo. Then it proves the claim.

**The proof.** Let D_q = C_1 + ... + C_n - (R + q m) G. If the commitments open to R + q m, the hop knows r with
D_q = r H. It proves that it knows such an r for one of D_0..D_(n-1): a Schnorr proof for the true q and simulated ones
for the others, whose challenges have to add up to the hash of everything (Cramer, Damgard and Schoenmakers;
Fiat-Shamir).

**Sound.** For one set of announcements and two challenges that both can be answered, some branch has two challenges
too, and its two answers give the logarithm r of D_q. So who answers more than one challenge in 2^256 knows an opening
of the sum to R + q m. If the x_i add up to something else, that is a second opening, hence the logarithm of H to G,
which nobody knows: H is hashed to the curve. Since n (m - 1) is far below the group's order, R + q m is an integer, and
R is the sum mod m.

**Zero knowledge.** C_i is uniform for every x_i to whoever lacks the seed. (A residue has few values: whoever had r_i
would find it by trying them. Only the silo and the hop have r_i, and both have x_i anyway.) Given the challenge, all
announcements, challenges and answers of a proof are distributed alike for every q, and a simulator makes them without a
witness; a test counts this over a small group. q must not be told, for with R it gives the sum of the masks before the
reduction mod m, which says more about each of them than R does. The logarithm of D_q, and with it q, follows from a
proof and its nonce. So nonces are drawn afresh, and derived from nothing that is shown later, as a pad is.

**What traps do not do.** A hop that changes a fraction f of the parameters is caught with probability
1 - (1 - f)^T by T random traps, so a change to one parameter passes nearly always, where the tamper check finds it. As
there, a silo and a hop together can add what the silo could have sent itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silomix.runtime.core.digest import digest, frame
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import Rng, Secret
from silomix.runtime.core.numbers.schema import Schema

SCALAR_BYTES = 32
POINT_BYTES = 33
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""The number of points of secp256k1, a prime."""

Point = Any
"""A point, or None for the neutral one, which has no encoding."""


class Group(Protocol):
    """A group of prime order with two generators of which nobody knows how one is a multiple of the other."""

    order: int
    G: Point
    H: Point

    def add(self, points: Sequence[Point]) -> Point:
        """Add points up."""
        ...

    def multiply(self, point: Point, scalar: int) -> Point:
        """Multiply a point by a scalar mod the order."""
        ...

    def encode(self, point: Point) -> bytes:
        """Encode any point, the neutral one too, in one way only."""
        ...

    def decode(self, encoded: bytes) -> Point:
        """Decode a point that is not the neutral one, or raise ValueError."""
        ...


class Secp256k1:
    """The curve of libsecp256k1. It is imported when the first trap is made: other nodes can do without it."""

    order = ORDER

    def __init__(self) -> None:
        """Hash H to the curve: the first label whose digest is the x-coordinate of a point."""
        from coincurve import PublicKey

        self._key = PublicKey
        self.G: Point = PublicKey.from_secret((1).to_bytes(SCALAR_BYTES, "big"))
        self.H: Point = self._hashed()

    def _hashed(self) -> Point:
        for counter in range(256):
            try:
                return self.decode(b"\x02" + digest("pedersen-h", counter))
            except ValueError:
                continue
        raise AssertionError("unreachable: one digest in two is a coordinate")

    def add(self, points: Sequence[Point]) -> Point:
        """Add points up, one after the other: the library has no neutral point, and refuses sums that are."""
        total: Point = None
        for point in points:
            if point is None:
                continue
            if total is None:
                total = point
            elif total.format() == point.format():
                total = point.multiply((2).to_bytes(SCALAR_BYTES, "big"))
            elif total.format()[1:] == point.format()[1:]:
                total = None
            else:
                total = self._key.combine_keys([total, point])
        return total

    def multiply(self, point: Point, scalar: int) -> Point:
        """Multiply a point by a scalar."""
        scalar %= ORDER
        if point is None or scalar == 0:
            return None
        if point is self.G:  # with tables, in half the time
            return self._key.from_secret(scalar.to_bytes(SCALAR_BYTES, "big"))
        return point.multiply(scalar.to_bytes(SCALAR_BYTES, "big"))

    def encode(self, point: Point) -> bytes:
        """Compress a point; the neutral one is zeros, which no point is."""
        return bytes(POINT_BYTES) if point is None else bytes(point.format())

    def decode(self, encoded: bytes) -> Point:
        """Decode a compressed point."""
        if len(encoded) != POINT_BYTES or encoded[0] not in (2, 3):
            raise ValueError(f"a point has {POINT_BYTES} bytes and begins with 2 or 3")
        return self._key(encoded)


@cache
def secp256k1() -> Secp256k1:
    """Return the curve, or say what to install."""
    try:
        return Secp256k1()
    except ImportError:
        raise LocalFault(
            Reason.PLAN_INFEASIBLE, "traps need the package coincurve: pip install 'silomix[traps]'", bound="traps"
        ) from None


def positions(coin: bytes, traps: int, first: int, end: int) -> tuple[int, ...]:
    """Draw so many different parameters of first..end-1, each set equally likely, or all if there are no more.

    0 and d for random traps; `last_layer` for traps where memorisation shows most, as the paper suggests.
    """
    if not 0 <= first < end or traps < 0:
        raise LocalFault(Reason.SHAPE_MISMATCH, f"cannot draw {traps} traps among parameters {first}..{end - 1}")
    span, chosen, counter = end - first, set[int](), 0
    if traps >= span:
        return tuple(range(first, end))
    top = (1 << 64) // span * span
    while len(chosen) < traps:
        drawn = int.from_bytes(digest("trap", coin, first, end, counter)[:8], "big")
        counter += 1
        if drawn < top:
            chosen.add(first + drawn % span)
    return tuple(sorted(chosen))


def last_layer(schema: Schema) -> tuple[int, int]:
    """Return where the last layer's parameters begin and end: those that share a prefix with the last of all.

    ``fc.weight`` and ``fc.bias`` are one layer, wherever buffers stand; what is between them is in the range too.
    """
    places, at = [], 0
    for tensor in schema.tensors:
        if tensor.size and not tensor.buffer:
            places.append((tensor.name.rpartition(".")[0], at, at + tensor.size))
        at += tensor.size
    if not places:
        raise LocalFault(Reason.SHAPE_MISMATCH, "the model has no parameters, so it has no last layer")
    layer = places[-1][0]
    return min(first for name, first, _ in places if name == layer), places[-1][2]


def detection(fraction: float, traps: int) -> float:
    """Return the probability that one of so many traps is among the changed parameters, at least."""
    return 1.0 - (1.0 - fraction) ** traps


@dataclass(frozen=True)
class Opening:
    """A value, and what hides it in a commitment."""

    value: int = field(repr=False)
    blinding: int = field(repr=False)


@dataclass(frozen=True)
class Statement:
    """What is proved, and all that the proof is bound to."""

    context: bytes
    """Digest of all that was said before: it covers manifest, cohort, signed roots, coin and commitments."""
    hop: str
    trap: int
    """Which of the traps it is, counted from 0: the coin says at which parameter that stands."""
    modulus: int
    residue: int
    """R."""
    commitments: tuple[bytes, ...]
    """C_i in the order of the cohort, then that of the hop to its negated pad if it has one."""

    def digest(self) -> bytes:
        """Hash the statement for the challenge."""
        place = (self.context, self.hop, self.trap, self.modulus, self.residue)
        return digest("trap-statement", *place, len(self.commitments), *self.commitments)


def blinding(secret: Secret, info: bytes, coin: bytes, trap: int, plane: int) -> int:
    """Derive the blinding of a commitment to what a secret expands to at a trap: only who has the secret can.

    `info` is what the expansion is bound to. With 16 bytes more than the order has, the remainder is uniform but for
    2^-128.
    """
    bound = frame("trap-blinding", info, coin, trap, plane)
    drawn = HKDF(SHA256(), SCALAR_BYTES + 16, salt=None, info=bound).derive(secret.keyed())
    return int.from_bytes(drawn, "big") % ORDER


def draw_opening(value: int, rng: Rng, group: Group | None = None) -> Opening:
    """Draw the blinding of a commitment to a mask's residue, uniformly."""
    return Opening(value, _scalar(group or secp256k1(), rng))


def commit(opening: Opening, group: Group | None = None) -> bytes:
    """Return x G + r H, encoded."""
    group = group or secp256k1()
    return group.encode(_commit(group, opening))


def _commit(group: Group, opening: Opening) -> Point:
    return group.add([group.multiply(group.G, opening.value), group.multiply(group.H, opening.blinding)])


def prove(statement: Statement, openings: Sequence[Opening], rng: Rng, group: Group | None = None) -> bytes:
    """Prove a statement with the openings of its commitments, or refuse to: then R is not what the masks add up to."""
    group = group or secp256k1()
    total = sum(opening.value for opening in openings)
    q, rest = divmod(total - statement.residue, statement.modulus)
    branches = _branches(group, statement)
    if rest or not 0 <= q < len(branches) or len(openings) != len(branches):
        raise LocalFault(
            Reason.TAMPERED,
            f"trap {statement.trap}: the masks do not add up to what was taken off mod {statement.modulus}",
            trap=statement.trap,
        )
    blinding = sum(opening.blinding for opening in openings) % group.order
    nonce = _scalar(group, rng)
    challenges = [_scalar(group, rng) for _ in branches]
    answers = [_scalar(group, rng) for _ in branches]
    announced = [
        group.multiply(group.H, nonce) if k == q else _announcement(group, branch, challenges[k], answers[k])
        for k, branch in enumerate(branches)
    ]
    others = sum(challenges) - challenges[q]
    challenges[q] = (_challenge(group, statement, announced) - others) % group.order
    answers[q] = (nonce + challenges[q] * blinding) % group.order
    return b"".join(number.to_bytes(SCALAR_BYTES, "big") for number in (*challenges, *answers))


def verify(statement: Statement, proof: bytes, group: Group | None = None) -> None:
    """Check a proof, or name the hop that made it. Anybody can: nothing secret goes into it."""
    group = group or secp256k1()
    branches = _branches(group, statement)
    expected = proof_bytes(len(branches))
    if len(proof) != expected:
        raise PeerFault(
            Reason.WRONG_LENGTH,
            f"{statement.hop}: a proof for {len(branches)} commitments has {expected} bytes, not {len(proof)}",
            node=statement.hop,
            found=len(proof),
            expected=expected,
        )
    numbers = [int.from_bytes(proof[at : at + SCALAR_BYTES], "big") for at in range(0, expected, SCALAR_BYTES)]
    challenges, answers = numbers[: len(branches)], numbers[len(branches) :]
    announced = [_announcement(group, *branch) for branch in zip(branches, challenges, answers, strict=True)]
    if max(numbers) >= group.order or sum(challenges) % group.order != _challenge(group, statement, announced):
        raise PeerFault(
            Reason.TAMPERED,
            f"{statement.hop}: the proof for trap {statement.trap} does not hold",
            node=statement.hop,
            trap=statement.trap,
        )


def proof_bytes(commitments: int) -> int:
    """Length of a proof: a challenge and an answer for each quotient."""
    return 2 * SCALAR_BYTES * commitments


def _branches(group: Group, statement: Statement) -> list[Point]:
    """Return D_0..D_(n-1)."""
    if not statement.commitments or not 0 <= statement.residue < statement.modulus:
        raise PeerFault(
            Reason.RESIDUE_RANGE,
            f"{statement.hop}: trap {statement.trap} needs commitments and a residue below {statement.modulus}",
            node=statement.hop,
        )
    points = []
    for i, encoded in enumerate(statement.commitments):
        try:
            points.append(group.decode(encoded))
        except ValueError:
            raise PeerFault(
                Reason.TAMPERED,
                f"commitment {i} to trap {statement.trap} is not a point",
                index=i,
                trap=statement.trap,
            ) from None
    branches = [group.add([*points, group.multiply(group.G, -statement.residue)])]
    step = group.multiply(group.G, -statement.modulus)
    for _ in points[1:]:
        branches.append(group.add([branches[-1], step]))
    return branches


def _announcement(group: Group, branch: Point, challenge: int, answer: int) -> Point:
    """Return what a branch must have announced to be answered so: z H - c D."""
    return group.add([group.multiply(group.H, answer), group.multiply(branch, -challenge)])


def _challenge(group: Group, statement: Statement, announced: Sequence[Point]) -> int:
    hashed = digest("trap-challenge", statement.digest(), *(group.encode(point) for point in announced))
    return int.from_bytes(hashed, "big") % group.order


def _scalar(group: Group, rng: Rng) -> int:
    """Draw a scalar, exactly uniform."""
    width = group.order.bit_length()
    while True:
        drawn = int.from_bytes(rng((width + 7) // 8), "big") & ((1 << width) - 1)
        if drawn < group.order:
            return drawn
