"""The paper's communication figures beside ours.

The paper's numbers are quotations and stand here as typed constants; every number of ours is computed when asked for,
and so is the mark that says whether the two agree. "Ours" means: by the paper's own method (the first primes whose
product holds every sum) at the n and r that the paper names. What silomix would send instead stands under `also`.

The JSON of ``silomix plan --paper --json`` is stable: fields are added, never renamed.

    sections  [{id, title, source, comparisons, series}]
    comparisons  [{what, silos, precision, paper, computed, mark, why, also}], mark is "agrees" or "differs", `also` a
                 map from the name of another choice to its value
    series       [{title, mark, columns, rows}], mark is "plot only": the paper draws the curve and prints no value
    summary   {agrees, differs}, the comparisons counted by mark
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import prod

from silomix.runtime.core.plan import Encoding, Plan, Quantiser, largest_value, plan, primes
from silomix.runtime.plan_report import VANILLA_BITS, paper_rle_bits, share_bits

Number = int | float


class Mark(StrEnum):
    """Whether the paper's number survives a second computation."""

    AGREES = "agrees"
    DIFFERS = "differs"
    PLOT_ONLY = "plot only"


@dataclass(frozen=True)
class Comparison:
    """One number of the paper beside ours; `why` says in a clause where a difference comes from."""

    what: str
    silos: int
    precision: int | None
    paper: Number | str
    computed: Number
    mark: Mark
    why: str = ""
    also: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Series:
    """A curve that the paper only draws: our values, all of them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    mark: Mark = Mark.PLOT_ONLY


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper, with what the text says about it."""

    id: str
    title: str
    source: str
    comparisons: tuple[Comparison, ...] = ()
    series: tuple[Series, ...] = ()


# --- quotations -------------------------------------------------------------------------------------------------------

FINDINGS = (
    ("CNN, MNIST", 3, "1.04"),
    ("CNN, CIFAR-10", 5, "1.81"),
    ("ResNet, CIFAR-100", 5, "1.81"),
    ("MLP, Synthetic", 4, "1.28"),
    ("CNN, HAR", 4, "1.28"),
    ("Transformer, Newsgroups", 4, "1.28"),
)
"""Table sum_of_findings: model and data, r, expansion for 10 clients."""
MATCHING = ("ResNet, CIFAR-100, full match", 8, "2.4")
"""Figure expansion_factor with its text; that r = 8 is the full match comes from the text on accuracy."""
RLE_FACTOR = "1.03"
INT8_FACTOR = "1.28"
MORE_CLIENTS = (
    (1000, 8, 36926, 160, 43, 32),
    (10000, 8, 399920, 160, 42, 32),
    (1000, 12, 49900, 281, 61, 32),
    (10000, 12, 539892, 328, 67, 32),
    (1000, 16, 63872, 381, 73, 32),
    (10000, 16, 669866, 440, 79, 32),
)
"""Table comm_cost_more_clients: clients, r, Secure Aggregation, Alg. 1, Alg. 1 + RLE, vanilla."""
EXTRA_BITS = ((4, 23), (8, 78))
"""Text on figure comm_cost: r, about how many bits more than vanilla, up to 20 clients."""
SA_CHEAPER_BELOW: tuple[tuple[int, int | str], ...] = ((4, "never"), (8, 5))
"""Text on figure comm_cost: r, the number of clients below which Secure Aggregation costs less."""
LARGEST_CASE = (10000, 16, 440, 79, 83)
"""Text: clients, r, bits of Alg. 1, bits with RLE, about so many KB for Secure Aggregation."""
EXPANSION_SILOS = 10
ZOOM = range(2, 21)


# --- ours -------------------------------------------------------------------------------------------------------------


def first(silos: int, r: int, quantiser: Quantiser = Quantiser.DECIMAL) -> Plan:
    """Return the plan by the paper's method: the first primes that hold every sum."""
    return plan(silos, r, Encoding.FIRST_PRIMES, quantiser=quantiser)


def printed_moduli(silos: int, r: int) -> tuple[int, ...]:
    """Return the first primes that Alg. 1 admits as printed: as many as keep the product below n v. Sums wrap."""
    chosen: tuple[int, ...] = ()
    for p in primes():
        if prod(chosen) * p >= silos * largest_value(r):
            return chosen
        chosen += (p,)
    raise AssertionError("unreachable: there are primes enough")


def matches(quoted: str, value: float) -> bool:
    """Say whether a value rounds to a quotation, to as many decimals as the quotation has."""
    return f"{value:.{len(quoted.partition('.')[2])}f}" == quoted


def _mark(agrees: bool) -> Mark:
    return Mark.AGREES if agrees else Mark.DIFFERS


def _ours(silos: int, r: int, quantiser: Quantiser = Quantiser.DECIMAL) -> dict[str, Number]:
    """Bits of what silomix chooses in place of the first primes."""
    return {
        str(e): plan(silos, r, e, quantiser=quantiser).bits_per_parameter for e in (Encoding.UNARY, Encoding.COUNTS)
    }


def _listed(values: Iterable[int]) -> str:
    return " or ".join(str(v) for v in values)


def _factor(what: str, r: int, quoted: str, width: Callable[[Iterable[int]], int]) -> Comparison:
    """Compare an expansion factor for 10 clients; `width` gives the bits of residues to some moduli."""
    n = EXPANSION_SILOS
    computed = width(first(n, r).moduli) / VANILLA_BITS
    why = ""
    if not matches(quoted, computed):
        bits = [b for b in range(1, 1000) if matches(quoted, b / VANILLA_BITS)]
        reached = [k for k in range(1, 17) if width(first(n, k).moduli) in bits]
        if not bits:
            near = int(float(quoted) * VANILLA_BITS)
            why = (
                f"no whole number of bits gives it ({near} give {near / VANILLA_BITS:.2f}, "
                f"{near + 1} give {(near + 1) / VANILLA_BITS:.2f})"
            )
        else:
            why = f"{_listed(bits)} bits are r = {_listed(reached)}, and r = {r} takes {width(first(n, r).moduli)}"
        if width(printed_moduli(n, r)) in bits:
            why += "; Alg. 1's condition as printed admits them, but then sums wrap round"
    also = {name: bits / VANILLA_BITS for name, bits in _ours(n, r).items()}
    return Comparison(what, n, r, float(quoted), computed, _mark(not why), why, also)


def expansion() -> Section:
    """Compare table sum_of_findings and figure expansion_factor: the factors belong to other precisions."""
    int8 = first(EXPANSION_SILOS, 1, Quantiser.INT8).bits_per_parameter / VANILLA_BITS
    also = {k: b / VANILLA_BITS for k, b in _ours(EXPANSION_SILOS, 1, Quantiser.INT8).items()}
    return Section(
        "expansion",
        "Expansion against 32 bits, 10 silos",
        "table sum_of_findings, figure expansion_factor and their text",
        (
            *(_factor(*finding, sum) for finding in (*FINDINGS, MATCHING)),
            _factor("ResNet, CIFAR-100, with RLE", MATCHING[1], RLE_FACTOR, lambda m: paper_rle_bits(tuple(m))),
            Comparison(
                "BERT in 8 bits",
                EXPANSION_SILOS,
                None,
                float(INT8_FACTOR),
                int8,
                _mark(matches(INT8_FACTOR, int8)),
                also=also,
            ),
        ),
    )


def more_clients() -> Section:
    """Compare every cell of table comm_cost_more_clients."""
    cells: list[Comparison] = []
    for n, r, sa, alg1, rle, vanilla in MORE_CLIENTS:
        moduli, c = first(n, r).moduli, share_bits(n * largest_value(r))
        bits, need, printed = sum(moduli), 2 * n * largest_value(r) + 1, printed_moduli(n, r)
        why_sa = why_bits = why_rle = ""
        if sa == c * (n - 2):
            why_sa = f"the table has C (n - 2) where the text says C (n - 1); C = ceil(log2(n v)), {c} here"
        if alg1 == sum(printed) != bits:
            why_bits = (
                f"infeasible: the primes up to {printed[-1]} multiply to {prod(printed)}, below the {need} sums to tell "
                f"apart, though Alg. 1's condition as printed admits them"
            )
        if rle != paper_rle_bits(moduli):
            why_rle = f"the same infeasible primes: theirs take {paper_rle_bits(printed)} by the other rows' counting"
        ours = _ours(n, r)
        packed = {"first-primes packed": first(n, r).packed_bits, "counts": ours["counts"]}
        signed = {"with a sign bit": share_bits(need) * (n - 1)}
        cells += (
            Comparison("Secure Aggregation", n, r, sa, c * (n - 1), _mark(sa == c * (n - 1)), why_sa, signed),
            Comparison("Alg. 1", n, r, alg1, bits, _mark(alg1 == bits), why_bits, {"unary": ours["unary"]}),
            Comparison(
                "Alg. 1 + RLE", n, r, rle, paper_rle_bits(moduli), _mark(rle == paper_rle_bits(moduli)), why_rle, packed
            ),
            Comparison("Vanilla FL", n, r, vanilla, VANILLA_BITS, _mark(vanilla == VANILLA_BITS)),
        )
    return Section(
        "more-clients", "Bits per silo and parameter, more clients", "table comm_cost_more_clients", tuple(cells)
    )


def _cheaper_below(r: int, encoding: Encoding) -> int:
    """Return the least n from 2 on at which Secure Aggregation, as printed, is no longer cheaper."""
    n = 2
    while share_bits(n * largest_value(r)) * (n - 1) < plan(n, r, encoding).bits_per_parameter:
        n += 1
    return n


BITS_COLUMNS = ("silos", "unary", "first-primes", "paper's RLE", "counts", "SA C (n - 1)", "SA C (n - 2)", "vanilla")


def _bits_row(n: int, r: int) -> tuple[int, ...]:
    ours, moduli, c = _ours(n, r), first(n, r).moduli, share_bits(n * largest_value(r))
    rle = paper_rle_bits(moduli)
    return (n, int(ours["unary"]), sum(moduli), rle, int(ours["counts"]), c * (n - 1), c * (n - 2), VANILLA_BITS)


def bits_by_silos() -> Section:
    """Compare figure comm_cost, with its zoom, and what the text reads off it."""
    claims: list[Comparison] = []
    for r, quoted in EXTRA_BITS:
        by_primes = [first(n, r).bits_per_parameter - VANILLA_BITS for n in ZOOM]
        least = [plan(n, r, Encoding.UNARY).bits_per_parameter - VANILLA_BITS for n in ZOOM]
        agrees = all(abs(extra - quoted) <= 1 for extra in (min(by_primes), max(by_primes)))
        spread = {"unary, least": min(least), "unary, most": max(least)}
        why = "" if agrees else f"the first primes cost {_listed(sorted(set(by_primes)))} more for 2 to 20 silos"
        claims.append(
            Comparison("bits above vanilla, up to 20", max(ZOOM), r, quoted, max(by_primes), _mark(agrees), why, spread)
        )
    for r, below in SA_CHEAPER_BELOW:
        computed, unary = _cheaper_below(r, Encoding.FIRST_PRIMES), _cheaper_below(r, Encoding.UNARY)
        why = "" if below == computed else f"C (n - 1) is the lower for n < {computed}"
        if why and below == unary:
            why += f"; against the least sum, for n < {unary}, as the paper says"
        claims.append(
            Comparison("SA is cheaper below", max(ZOOM), r, below, computed, _mark(not why), why, {"unary": unary})
        )
    return Section(
        "bits-by-silos",
        "Bits per silo and parameter by the number of silos",
        "figure comm_cost, its zoom and their text",
        tuple(claims),
        tuple(Series(f"r = {r}", BITS_COLUMNS, tuple(_bits_row(n, r) for n in range(2, 101))) for r in (4, 8)),
    )


def rounds() -> Section:
    """Compute figure rns_shuffle_rounds: a shuffling round for each modulus."""

    def row(x: int, n: int, r: int) -> tuple[int, ...]:
        kinds = (Encoding.FIRST_PRIMES, Encoding.UNARY, Encoding.COUNTS)
        return (x, *(len(plan(n, r, e).moduli) for e in kinds))

    kinds = ("first-primes", "unary", "counts")
    by_silos = tuple(row(d * 10**k, d * 10**k, 10) for k in range(7) for d in (1, 2, 5) if 2 <= d * 10**k <= 10**6)
    by_r = tuple(Series(f"{n} silos", ("r", *kinds), tuple(row(r, n, r) for r in range(1, 17))) for n in (10, 10**6))
    return Section(
        "rounds",
        "Shuffling rounds: one for each modulus",
        "figure rns_shuffle_rounds",
        series=(Series("r = 10", ("silos", *kinds), by_silos), *by_r),
    )


def in_text() -> Section:
    """Compare the largest case that the text works out."""
    n, r, alg1, rle, kilobytes = LARGEST_CASE
    moduli, ours = first(n, r).moduli, _ours(n, r)
    sa = share_bits(n * largest_value(r)) * (n - 1) / 8000
    return Section(
        "in-text",
        "The largest case",
        "text on communication cost",
        (
            Comparison(
                "Alg. 1, bits", n, r, alg1, sum(moduli), _mark(alg1 == sum(moduli)), also={"unary": ours["unary"]}
            ),
            Comparison(
                "Alg. 1 + RLE, bits",
                n,
                r,
                rle,
                paper_rle_bits(moduli),
                _mark(rle == paper_rle_bits(moduli)),
                also={"first-primes packed": first(n, r).packed_bits, "counts": ours["counts"]},
            ),
            Comparison("Secure Aggregation, about, KB", n, r, kilobytes, sa, _mark(abs(sa - kilobytes) <= 1)),
        ),
    )


def condition() -> Section:
    """Compare the two conditions on the moduli that the paper prints, at n = 10 and r = 4."""
    n, r = EXPANSION_SILOS, 4
    limit = n * largest_value(r)
    need = 2 * limit + 1
    # n v < floor((M - 1) / 2): the least M is found, not solved for, so that the formula stands as it is printed.
    text = next(m for m in range(need - 4, need + 5) if limit < (m - 1) // 2)
    return Section(
        "condition",
        "The least product of the moduli, 10 silos, r = 4",
        "Alg. 1 and the text on S.3",
        (
            Comparison(
                "Alg. 1: M < n (10^r - 1)",
                n,
                r,
                f"below {limit}",
                need,
                Mark.DIFFERS,
                "a sum lies in -n v..n v, so M must reach 2 n v + 1: other direction, and a factor 2 for the sign",
            ),
            Comparison(
                "text: n v < floor((M - 1) / 2)", n, r, text, need, _mark(text == need), f"stricter by {text - need}"
            ),
        ),
    )


@dataclass(frozen=True)
class PaperReport:
    """Every communication table and figure of the paper, each beside ours."""

    sections: tuple[Section, ...]

    def count(self, mark: Mark) -> int:
        """Return how many comparisons have a mark."""
        return sum(c.mark is mark for s in self.sections for c in s.comparisons)

    def as_json(self) -> dict[str, object]:
        """Return the stable structure that the module describes."""
        return {**asdict(self), "summary": {str(m): self.count(m) for m in (Mark.AGREES, Mark.DIFFERS)}}


def paper_report() -> PaperReport:
    """Compute everything."""
    return PaperReport((condition(), expansion(), bits_by_silos(), rounds(), more_clients(), in_text()))
