"""What a policy costs on the wire, as data.

One row per way to send a parameter, so that an owner can choose a precision and a level before anything runs. No
rendering here: the command line draws a table or writes JSON from the same rows.

The JSON of ``silomix plan --json`` is stable: fields are added, never renamed.

    policy  {silos, precision, level, weight_levels, headroom, quantiser, largest_value, sums}
            `sums` is how many different sums must be told apart: 2 n W v + 1, before headroom
    chain   {pool, minimum, colluding, lost}: the hops, how many of them a chain has at least, how many may collude
            with the aggregator, how many may be lost
    model   {name, parameters}; the name is null for a bare --parameters
    rows    [{encoding, moduli, bits_per_parameter, expansion, bytes, note}], one of each `Sending`, in that order;
            `moduli` is empty where there are none, `expansion` is against 32 bits, `bytes` is one silo's model
            without framing
    round   {rounds, invited, minimum_cohort, groups, longest_s, early_close unless it is 0, and with noise
            epsilon and delta}: what the rest of the policy makes of a round; empty below three silos, of which no
            federation is made
    check   at level malicious {rhos, error_bits, blinder_bytes, silo_bytes, silo_passes, hop_passes}: the tamper check
    traps   with --traps {traps, silo_bytes, hop_bytes, silo_multiplications, hop_multiplications,
            verifier_multiplications, detection}: the paper's traps; `check_costs.py` says what each of these is
    notes   [str], what a reader of the rows should know
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, Quantiser, plan

VANILLA_BITS = 32
"""One float32: what plain federated averaging sends for a parameter."""
FLOAT32_DIGITS = 7
"""Decimal digits that a float32 in (-1, 1) carries; a greater r sends digits that the model does not have."""


class Sending(StrEnum):
    """The ways to send a parameter that a report compares."""

    VANILLA = "vanilla"
    UNARY = "unary"
    FIRST_PRIMES = "first-primes"
    FIRST_PRIMES_RLE = "first-primes+rle"
    COUNTS = "counts"
    SECURE_AGGREGATION = "secure-aggregation"
    """As the paper's text prints it for t = n - 1: a share of C bits to each of n - 1 others."""
    SECURE_AGGREGATION_TABLE = "secure-aggregation-table"
    """As the paper's table computed it: n - 2 shares."""


@dataclass(frozen=True)
class Model:
    """A model by its size: costs depend on nothing else of it."""

    name: str | None
    parameters: int


MODELS = {
    model.name: model
    for model in (
        Model("mnist-cnn", 643_850),
        Model("cifar10-cnn", 940_362),
        Model("resnet18", 11_227_812 + 9_620),  # weights + batch-norm buffers: buffers are averaged, so they travel
        Model("mlp", 60 * 200 + 200 + 200 * 10 + 10),
    )
}
"""The paper's models: the first three as its table of computation times counts them, and the 60-200-10 perceptron."""
DEFAULT_MODEL = "resnet18"
DEFAULT_CHAIN = ChainRule(3, 3)
"""Three hops, all of them in every chain."""


@dataclass(frozen=True)
class Row:
    """The cost of one way to send a parameter."""

    encoding: Sending
    moduli: tuple[int, ...]
    bits_per_parameter: int
    expansion: float
    bytes: int
    note: str


@dataclass(frozen=True)
class PlanReport:
    """All rows for one policy and one model."""

    policy: dict[str, int | str]
    chain: dict[str, int]
    model: Model
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    round: dict[str, int | float] = field(default_factory=dict)
    check: dict[str, Any] = field(default_factory=dict)
    traps: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the stable structure that the module describes."""
        return asdict(self)


def share_bits(limit: int) -> int:
    """Return C = ceil(log2(limit)), the paper's size of a Secure Aggregation share for sums up to `limit`."""
    return (limit - 1).bit_length()


def paper_rle_bits(moduli: Sequence[int]) -> int:
    """Return the bits of run-length encoded residues as the paper counts them.

    Its negative numbers have residues m - x, which reach m itself, so a residue takes m.bit_length() bits and not
    ceil(log2 m): the two differ for the modulus 2.
    """
    return sum(m.bit_length() for m in moduli)


def report(
    silos: int,
    precision: int,
    level: Level = Level.SEMI_HONEST,
    weight_levels: int = 1,
    headroom: int = 0,
    quantiser: Quantiser = Quantiser.DECIMAL,
    model: Model = MODELS[DEFAULT_MODEL],
    chain: ChainRule = DEFAULT_CHAIN,
) -> PlanReport:
    """Compute the rows for a policy. Raises the plan's own fault if the policy cannot hold."""
    if chain.problem:
        raise LocalFault(Reason.WRONG_CHAIN, chain.problem)

    def planned(encoding: Encoding) -> Plan:
        return plan(silos, precision, encoding, level, weight_levels, headroom, quantiser)

    def row(encoding: Sending, bits: int, moduli: tuple[int, ...] = (), note: str = "") -> Row:
        return Row(encoding, moduli, bits, bits / VANILLA_BITS, (bits * model.parameters + 7) // 8, note)

    unary, primes, counts = planned(Encoding.UNARY), planned(Encoding.FIRST_PRIMES), planned(Encoding.COUNTS)
    c = share_bits(counts.limit)
    rows = (
        row(Sending.VANILLA, VANILLA_BITS, note="float32, hides nothing"),
        row(Sending.UNARY, unary.bits_per_parameter, unary.moduli, "Alg. 1 with the least sum"),
        row(Sending.FIRST_PRIMES, primes.bits_per_parameter, primes.moduli, "Alg. 1 as the paper's tables have it"),
        row(
            Sending.FIRST_PRIMES_RLE,
            primes.packed_bits,
            primes.moduli,
            f"ceil(log2 m) bits each; the paper counts {paper_rle_bits(primes.moduli)}",
        ),
        row(Sending.COUNTS, counts.bits_per_parameter, counts.moduli, "what silomix sends"),
        row(Sending.SECURE_AGGREGATION, c * (silos - 1), note=f"C (n - 1), C = {c}, t = n - 1, as printed"),
        row(Sending.SECURE_AGGREGATION_TABLE, c * max(silos - 2, 0), note=f"C (n - 2), C = {c}, as the table used it"),
    )
    policy: dict[str, int | str] = {
        "silos": silos,
        "precision": precision,
        "level": str(level),
        "weight_levels": weight_levels,
        "headroom": headroom,
        "quantiser": str(quantiser),
        "largest_value": counts.v,
        "sums": 2 * counts.limit + 1,
    }
    numbers = {"pool": chain.pool, "minimum": chain.minimum, "colluding": chain.colluding, "lost": chain.lost}
    return PlanReport(policy, numbers, model, rows, tuple(_notes(counts, c)))


def _notes(counts: Plan, c: int) -> list[str]:
    notes = []
    if counts.quantiser is Quantiser.INT8:
        notes.append(f"int8 sends values up to {counts.v}; the precision is not used.")
    elif counts.precision > FLOAT32_DIGITS:
        notes.append(
            f"r = {counts.precision} is too precise for float32, which carries about {FLOAT32_DIGITS} decimal digits: "
            f"the digits beyond them cost bits and carry nothing."
        )
    if counts.level is Level.MALICIOUS:
        notes.append("Level malicious takes prime moduli, because the tamper check works in fields.")
    signed = share_bits(2 * counts.limit + 1)
    if signed > c:
        notes.append(f"Secure Aggregation's C = ceil(log2(n W v)) = {c} leaves no room for the sign: {signed} would.")
    return notes
