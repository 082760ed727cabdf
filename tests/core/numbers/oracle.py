"""The paper's algorithms, written literally and slowly: what the codec is checked against.

Nothing here is shared with the product. Bits are Python lists, permutations are real, numbers are unbounded, and each
function follows one printed definition: unary encoding (def. 1), RNS encoding (def. 2) with its rule for negatives,
the range proposition, the appendix's example of the Chinese remainder theorem, Alg. 1 (parameter-level shuffling with
RNS) and the appendix's variant with RLE. Where the paper is wrong the printed form stays, and ours stands beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from math import floor, prod
from random import Random

Bits = list[int]
Encode = Callable[[int, Sequence[int]], list[int]]
Quantise = Callable[[float], int]


def unary(x: int, k: int) -> Bits:
    """Def. "Unary encoding": U(x, k) is x ones followed by k - x zeros."""
    if not 0 <= x <= k:
        raise ValueError(f"U({x}, {k}) is not defined: x has to lie in 0..{k}")
    return [1] * x + [0] * (k - x)


def rle(bits: Sequence[int]) -> int:
    """Sec. "Communication improvement": ones come first and the length is known, so their number says it all."""
    ones = sum(bits)
    if list(bits) != unary(ones, len(bits)):
        raise ValueError("only a unary code, ones first, compresses to the number of its ones")
    return ones


def unrle(ones: int, k: int) -> Bits:
    """Give back the k bits that `rle` compressed, as the shuffler of Alg. "RNS combined with RLE" does."""
    return unary(ones, k)


def shuffle(bits: Sequence[int], rng: Random) -> Bits:
    """Permute bits: position i of the result holds the bit of a position that no other holds."""
    order = list(range(len(bits)))
    rng.shuffle(order)
    return [bits[i] for i in order]


def rns_encode(x: int, moduli: Sequence[int]) -> list[int]:
    """Def. "RNS encoding" and the sign rule as printed: m_j - (|x| mod m_j), which is m_j when m_j divides x."""
    residues = [abs(x) % m for m in moduli]
    return residues if x >= 0 else [m - a for m, a in zip(moduli, residues, strict=True)]


def rns_encode_corrected(x: int, moduli: Sequence[int]) -> list[int]:
    """Def. "RNS encoding" with the sign rule mended: a multiple of m_j has residue 0, whatever its sign."""
    return [a % m for m, a in zip(moduli, rns_encode(x, moduli), strict=True)]


@dataclass(frozen=True)
class Crt:
    """The numbers of the appendix's example of the Chinese remainder theorem, under its names."""

    M: int
    M_i: list[int]
    y_i: list[int]
    x: int


@cache
def inverse(a: int, m: int) -> int:
    """Return the y in 1..m with a * y = 1 mod m, by trial."""
    return next(y for y in range(1, m + 1) if a * y % m == 1 % m)


def crt_steps(residues: Sequence[int], moduli: Sequence[int]) -> Crt:
    """Follow the appendix: M_i = M / m_i, M_i * y_i = 1 mod m_i, x = sum of a_i * M_i * y_i mod M, in 0..M-1."""
    M = prod(moduli)
    M_i = [M // m for m in moduli]
    y_i = [inverse(M_j % m, m) for M_j, m in zip(M_i, moduli, strict=True)]
    return Crt(M, M_i, y_i, sum(a * b * y for a, b, y in zip(residues, M_i, y_i, strict=True)) % M)


def crt(residues: Sequence[int], moduli: Sequence[int]) -> int:
    """Return the integer in -floor(M/2)..floor((M-1)/2), the range proposition's, that has these residues."""
    steps = crt_steps(residues, moduli)
    return steps.x if steps.x <= (steps.M - 1) // 2 else steps.x - steps.M


def floor_scale(p: float, r: int) -> int:
    """Alg. 1, client side, as printed: floor(p * 10^r)."""
    scale: int = 10**r
    return floor(p * scale)


def round_clip(p: float, bound: float, v: int) -> tuple[int, bool]:
    """Ours instead of the floor: rint(p / bound * v) within -v..v, and whether it had to be clipped.

    The product is p * (v / bound) in float64, halves go to the even neighbour, and v is below 2^53.
    """
    x = round(max(-v - 1.0, min(v + 1.0, p * (v / bound))))
    return max(-v, min(v, x)), abs(x) > v


@dataclass(frozen=True)
class View:
    """What the server of Alg. 1 receives, for each parameter and each residue."""

    bits: list[list[Bits]]
    """The shuffled bit vectors B'."""

    @property
    def residue_sums(self) -> list[list[int]]:
        """The sums of the bit vectors: sums of residues, which nobody has reduced modulo m_j."""
        return [[sum(vector) for vector in vectors] for vectors in self.bits]

    def reduced(self, moduli: Sequence[int]) -> list[list[int]]:
        """The sums modulo m_j: all that our last hop lets out."""
        return [[s % m for s, m in zip(sums, moduli, strict=True)] for sums in self.residue_sums]

    def decode(self, moduli: Sequence[int]) -> list[int]:
        """Alg. 1, server side: the sum over the clients of each parameter's integer."""
        return [crt(sums, moduli) for sums in self.residue_sums]


def server_view(
    integers: Sequence[Sequence[int]],
    moduli: Sequence[int],
    rng: Random,
    *,
    encode: Encode = rns_encode,
    compress: bool = False,
) -> View:
    """Alg. 1 from the clients' integers (one row for each client) to the shuffled bits that reach the server.

    With `compress` the number of ones travels to the shuffler in place of the ones: Alg. "RNS combined with RLE".
    """
    view: list[list[Bits]] = []
    for values in zip(*integers, strict=True):  # the values that the clients hold of one parameter
        residues = [encode(x, moduli) for x in values]
        vectors: list[Bits] = []
        for j, m in enumerate(moduli):
            sent = [unary(client[j], m) for client in residues]
            received = [unrle(count, m) for count in map(rle, sent)] if compress else sent
            vectors.append(shuffle(list(chain.from_iterable(received)), rng))
        view.append(vectors)
    return View(view)


def alg1(
    models: Sequence[Sequence[float]],
    r: int,
    moduli: Sequence[int],
    rng: Random,
    *,
    quantise: Quantise | None = None,
    encode: Encode = rns_encode,
    compress: bool = False,
) -> list[float]:
    """Alg. 1: the clients' models in, the joint model w_glob out; as printed unless told otherwise."""
    scale = quantise or partial(floor_scale, r=r)
    integers = [[scale(p) for p in model] for model in models]
    sums = server_view(integers, moduli, rng, encode=encode, compress=compress).decode(moduli)
    return [(y / 10**r) / len(models) for y in sums]


def alg1_rle(models: Sequence[Sequence[float]], r: int, moduli: Sequence[int], rng: Random) -> list[float]:
    """Alg. "Parameter-level shuffling with RNS combined with RLE", as printed."""
    return alg1(models, r, moduli, rng, compress=True)
