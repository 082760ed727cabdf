"""Protocol section 7: the tamper check hides what it must, finds what it must, and names the right node.

The privacy and the error bound are not sampled: over tiny fields every blinder, mask and coin is counted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial, reduce
from itertools import combinations, count, product, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tools import examples
from tests.vectors import reference

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers import fold as fold_module
from silomix.runtime.core.numbers import tamper
from silomix.runtime.core.numbers.fold import BLOCK, Coefficients
from silomix.runtime.core.numbers.masks import MaskContext, Secret, mask_stream
from silomix.runtime.core.numbers.packing import pack
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, Quantiser, plan, primes
from silomix.runtime.core.numbers.tamper import (
    Arrival,
    EquationKind,
    Finding,
    Fold,
    Passage,
    Scalars,
    Share,
    Submission,
    Transcript,
)

Ints = npt.NDArray[np.int64]


def fields(*moduli: int, level: Level = Level.MALICIOUS) -> Plan:
    """A plan with moduli of the test's choice."""
    return Plan(3, 1, Encoding.COUNTS, level, 1, 0, Quantiser.DECIMAL, moduli)


# Sizes and blinders.


def test_rho_is_the_least_that_lets_an_error_pass_once_in_2_to_the_72() -> None:
    for p in (*takewhile(lambda p: p < 2000, primes()), 16381, 32749, 32771, 262139, 1048573):
        passes = Fraction(1, min(p, 2**15))  # a row of A, for one error at most of that many
        assert 2 * passes ** tamper.rho(p) <= Fraction(1, 2**72) < 2 * passes ** (tamper.rho(p) - 1)
    assert tamper.rho(2) == 73
    assert tamper.rho(1048573) == 5


def test_nine_bit_primes_need_nine_scalars_not_eight() -> None:
    assert 503**8 < 509**8 < 2**73 < 281**9
    assert {tamper.rho(p) for p in range(281, 512)} == {9}
    assert tamper.rhos(plan(10, 4, level=Level.MALICIOUS)) == (5,)


@pytest.mark.parametrize("p", [13, 32749, 32771, 262139])
def test_no_error_is_met_by_more_rows_than_one_in_so_many(p: int) -> None:
    """Whatever an error adds elsewhere, one value at most of the coefficient before it makes a row zero."""
    s = fold_module.below(p)
    for error in (1, 2, p // 2, p - 1):
        assert len({a * error % p for a in range(s)}) == s


def test_a_plan_without_fields_is_refused() -> None:
    with pytest.raises(LocalFault) as refused:
        tamper.blinders(plan(10, 4), bytes)
    assert refused.value.reason is Reason.PLAN_INFEASIBLE


@pytest.mark.parametrize("p", [2, 3, 5, 13, 127, 251])
def test_blinders_are_exactly_uniform(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "SOUNDNESS_BITS", 0)
    accepted = [0] * p
    for byte in range(256):
        drawn = iter([byte, 0])
        ((value,),) = tamper.blinders(fields(p), lambda n, drawn=drawn: bytes([next(drawn)]))  # type: ignore[misc]
        accepted[value] += len(list(drawn))  # one byte is left when the first was kept
    assert len(set(accepted)) == 1
    assert accepted[0] > 0


def test_blinders_fill_every_plane() -> None:
    chosen = fields(17, 503, 1048573)
    stream = count()
    drawn = tamper.blinders(chosen, lambda n: (next(stream) * 40503).to_bytes(8, "little")[:n])
    assert tuple(map(len, drawn)) == tamper.rhos(chosen) == (18, 9, 5)
    assert all(0 <= b < p for p, row in zip(chosen.moduli, drawn, strict=True) for b in row)


# The coin.

CONTEXT = b"manifest, cohort and roots"
SECRETS = {"a": bytes(32), "b": bytes(range(32)), "c": b"\xff" * 32}


def committed(secrets: dict[str, bytes], context: bytes = CONTEXT) -> dict[str, bytes]:
    return {silo: tamper.commit(secret, silo, context) for silo, secret in secrets.items()}


def shown(secrets: dict[str, bytes], commitments: dict[str, bytes], context: bytes = CONTEXT) -> dict[str, Share]:
    return {silo: Share(secret, tamper.ballot(context, commitments)) for silo, secret in secrets.items()}


COMMITMENTS = committed(SECRETS)
SHARES = shown(SECRETS, COMMITMENTS)


def toss(
    commitments: dict[str, bytes] = COMMITMENTS, shares: dict[str, Share] = SHARES, context: bytes = CONTEXT
) -> bytes:
    return tamper.coin(context, ["a", "b", "c"], commitments, shares)


def test_coin_is_the_same_for_everybody() -> None:
    assert toss() == toss(dict(reversed(COMMITMENTS.items())), dict(reversed(SHARES.items())))


def test_coin_vector() -> None:
    assert COMMITMENTS["a"].hex() == "6a23b6522dd92ef57e7bd9ac6350f31560842d9af84bb8b9225704db402afbd3"
    assert toss().hex() == "01d5e2d4d390b8ec68a59adc063c91bb9ec3160cb20c24de5ae88f8dfeb512c2"


def test_every_share_changes_the_coin() -> None:
    tossed = {toss()}
    for silo in SECRETS:
        secrets = {**SECRETS, silo: b"\x01" * 32}
        tossed.add(toss(committed(secrets), shown(secrets, committed(secrets))))
    assert len(tossed) == 4


@pytest.mark.parametrize("silo", SECRETS)
@pytest.mark.parametrize("committing", [True, False])
def test_missing_share_names_its_owner_unresponsive(silo: str, committing: bool) -> None:
    commitments = {s: c for s, c in COMMITMENTS.items() if committing or s != silo}
    with pytest.raises(PeerFault, match="unresponsive") as refused:
        toss(commitments, {s: v for s, v in SHARES.items() if s != silo})
    assert refused.value.reason is Reason.SHARE_MISSING
    assert refused.value.details["silo"] == silo


@pytest.mark.parametrize("silo", SECRETS)
@pytest.mark.parametrize("value", [b"\x02" * 32, b"", bytes(31), bytes(33)])
def test_wrong_share_names_its_owner(silo: str, value: bytes) -> None:
    with pytest.raises(PeerFault) as refused:
        toss(shares={**SHARES, silo: replace(SHARES[silo], value=value)})
    assert refused.value.reason is Reason.SHARE_MISMATCH
    assert refused.value.details["silo"] == silo


def test_share_without_a_commitment_is_refused() -> None:
    with pytest.raises(PeerFault) as refused:
        toss({s: c for s, c in COMMITMENTS.items() if s != "b"})
    assert (refused.value.reason, refused.value.details["silo"]) == (Reason.SHARE_MISMATCH, "b")


def test_stranger_is_refused() -> None:
    for commitments, shares in (({"d": bytes(32)}, {}), ({}, {"d": SHARES["a"]})):
        with pytest.raises(PeerFault) as refused:
            toss({**COMMITMENTS, **commitments}, {**SHARES, **shares})
        assert (refused.value.reason, refused.value.details["silo"]) == (Reason.SHARE_MISMATCH, "d")


def test_commitment_serves_one_silo_and_one_context() -> None:
    with pytest.raises(PeerFault, match="silo b"):
        toss({**COMMITMENTS, "b": COMMITMENTS["a"]}, {**SHARES, "b": SHARES["a"]})
    with pytest.raises(PeerFault, match="silo a"):
        toss(context=b"the next attempt")


def test_silo_that_commits_twice_cannot_split_the_coin() -> None:
    """c commits to one share towards a and to another towards b: neither gets a coin, and neither is blamed."""
    for_a, for_b = committed(SECRETS), committed({**SECRETS, "c": b"\x03" * 32})
    a, b = shown(SECRETS, for_a)["a"], shown(SECRETS, for_b)["b"]
    c_for_a, c_for_b = shown(SECRETS, for_a)["c"], shown({"c": b"\x03" * 32}, for_b)["c"]
    for commitments, shares, witness in (
        (for_a, {"a": a, "b": b, "c": c_for_a}, "b"),
        (for_b, {"a": a, "b": b, "c": c_for_b}, "a"),
    ):
        with pytest.raises(PeerFault, match="other commitments") as refused:
            toss(commitments, shares)
        assert refused.value.details == {"witness": witness}


def test_coin_needs_a_cohort_and_whole_shares() -> None:
    with pytest.raises(LocalFault):
        tamper.coin(CONTEXT, [], {}, {})
    with pytest.raises(LocalFault):
        tamper.commit(bytes(16), "a", CONTEXT)


def test_shares_do_not_print() -> None:
    assert "xff" not in repr(SHARES["c"])
    assert repr(SECRETS["c"]) not in repr(SHARES)


# Coefficients and folds against plain integers.


Extended = list[Ints]
"""An extended vector: for each plane its d parameters, then its rho blinder coordinates."""


def scalars(coin: bytes, chosen: Plan, d: int, size: int, vectors: Sequence[Extended]) -> list[Scalars]:
    """l of each vector as the nodes compute it, in step."""
    first = Fold(coin, chosen, d, size)
    folds = [first, *(first.sibling() for _ in vectors[1:])]
    for index, start in enumerate(range(0, d, size)):
        for fold, vector in zip(folds, vectors, strict=True):
            fold.update(index, np.array([row[start : min(d, start + size)] for row in vector], np.uint32))
    return [
        fold.finish(tuple(tuple(row[d:].tolist()) for row in vector))
        for fold, vector in zip(folds, vectors, strict=True)
    ]


def oracle(coin: bytes, chosen: Plan, d: int, size: int, vector: Extended) -> Scalars:
    """l in plain integers."""
    held = Coefficients(coin, chosen, d, size)
    across = [block.tolist() for block in held.blocks]
    sums = [list(map(int, row[d:])) for row in vector]
    for index, start in enumerate(range(0, d, size)):
        end = min(d, start + size)
        outer = [matrices.tolist() for matrices in held.chunk(index)]
        for t, first in enumerate(range(start, end, BLOCK)):
            for plane, rho in enumerate(tamper.rhos(chosen)):
                block = [int(x) for x in vector[plane][first : min(end, first + BLOCK)]]
                for i in range(rho):
                    inner = sum(a * x for a, x in zip(across[plane][i], block, strict=False))
                    for j in range(rho):
                        sums[plane][j] += inner * outer[plane][t][i][j]
    return tuple(tuple(s % p for s in row) for p, row in zip(chosen.moduli, sums, strict=True))


def draw_vector(numbers: np.random.Generator, chosen: Plan, d: int) -> Extended:
    return [numbers.integers(0, p, d + n) for p, n in zip(chosen.moduli, tamper.rhos(chosen), strict=True)]


def add(chosen: Plan, *vectors: Extended) -> Extended:
    return [sum(rows) % p for p, rows in zip(chosen.moduli, zip(*vectors, strict=True), strict=True)]


def subtract(chosen: Plan, left: Extended, right: Extended) -> Extended:
    return [(a - b) % p for p, a, b in zip(chosen.moduli, left, right, strict=True)]


plans = st.sampled_from([plan(10, 4, level=Level.MALICIOUS), fields(521, 1048573), fields(524287)])
coins = st.binary(min_size=32, max_size=32)
seeds = st.integers(0, 2**32)
quick = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(plans, coins, seeds, st.integers(1, 3000), st.integers(200, 2500))
def test_fold_by_chunks_equals_the_whole(chosen: Plan, coin: bytes, seed: int, d: int, size: int) -> None:
    vector = draw_vector(np.random.default_rng(seed), chosen, d)
    assert scalars(coin, chosen, d, size, [vector]) == [oracle(coin, chosen, d, size, vector)]


@quick
@given(plans, coins, seeds, st.integers(1, 30), st.integers(1, 35))
def test_fold_is_linear(chosen: Plan, coin: bytes, seed: int, d: int, size: int) -> None:
    numbers = np.random.default_rng(seed)
    a, b = draw_vector(numbers, chosen, d), draw_vector(numbers, chosen, d)
    of_a, of_b, of_sum = scalars(coin, chosen, d, size, [a, b, add(chosen, a, b)])
    assert of_sum == plus(chosen, of_a, of_b)


def plus(chosen: Plan, left: Scalars, right: Scalars) -> Scalars:
    return tuple(
        tuple((x + y) % p for x, y in zip(a, b, strict=True))
        for p, a, b in zip(chosen.moduli, left, right, strict=True)
    )


def test_chunks_may_come_in_any_order_and_once_each() -> None:
    chosen, coin, d, size = fields(503, 509), bytes(32), 11, 4
    row = np.arange(2 * d, dtype=np.uint16).reshape(2, d)
    blind = tamper.blinders(chosen, bytes)
    forward, backward = Fold(coin, chosen, d, size), Fold(coin, chosen, d, size)
    for index in range(3):
        forward.update(index, row[:, 4 * index : 4 * index + 4])
    for index in (2, 0):
        backward.update(index, row[:, 4 * index : 4 * index + 4])
    with pytest.raises(LocalFault, match="2 of 3 chunks"):
        backward.finish(blind)
    with pytest.raises(LocalFault, match="already"):
        backward.update(2, row[:, 8:])
    with pytest.raises(LocalFault, match="not \\(2, 3\\)"):
        backward.update(1, row[:, 4:7])
    with pytest.raises(LocalFault, match="no chunk 3"):
        backward.update(3, row[:, 4:8])
    signed: Any = row[:, 4:8].astype(np.int64)
    with pytest.raises(LocalFault, match="uint16 or uint32"):
        backward.update(1, signed)
    backward.update(1, row[:, 4:8])
    with pytest.raises(LocalFault, match="blinder coordinates"):
        backward.finish(blind[:1])
    assert forward.finish(blind) == backward.finish(blind)


@given(plans, coins, seeds, st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 20))
@settings(quick, max_examples=examples(12))
def test_packed_chunks_fold_as_residues_do(
    chosen: Plan, coin: bytes, seed: int, d: int, size: int, behind: int
) -> None:
    """Also where blinders, or anything else, stand behind the parameters of a chunk."""
    numbers, size = np.random.default_rng(seed), max(size, d // 20)
    plain = Fold(coin, chosen, d, size)
    packed, narrow = plain.sibling(), plain.sibling()
    for index, start in enumerate(range(0, d, size)):
        n = min(size, d - start)
        rows = np.array([numbers.integers(0, p, n + behind) for p in chosen.moduli], np.uint32)
        plain.update(index, rows[:, :n])
        if max(chosen.moduli) < 1 << 16:
            narrow.update(index, rows[:, :n].astype(np.uint16))
        planes = [pack(row, width) for row, width in zip(rows, chosen.widths, strict=True)]
        packed.update_packed(index, np.frombuffer(b"".join(planes), np.uint8), n + behind)
    blind = tamper.blinders(chosen, bytes)
    assert packed.finish(blind) == plain.finish(blind)
    if max(chosen.moduli) < 1 << 16:
        assert narrow.finish(blind) == plain.finish(blind)


@pytest.mark.parametrize("chosen", [fields(503, 509), fields(4093, 4091), fields(4099, 1048573)], ids=str)
def test_the_greatest_residues_do_not_overflow(chosen: Plan) -> None:
    """All that a word can hold, in vector, A and every M_t: the sums stay exact."""
    d, size = 3 * BLOCK + 5, 2 * BLOCK
    fold = Fold(bytes(32), chosen, d, size)
    a = fold._coefficients
    tops = [fold_module.below(p) - 1 for p in chosen.moduli]
    a.blocks = tuple(np.full_like(block, top) for top, block in zip(tops, a.blocks, strict=True))
    for index, start in enumerate(range(0, d, size)):
        a._latest = (index, tuple(np.full_like(m, p - 1) for p, m in zip(chosen.moduli, a.chunk(index), strict=True)))
        n = min(size, d - start)
        fold.update(index, np.array([np.full(n, p - 1) for p in chosen.moduli], np.uint32))
    zero = tuple((0,) * n for n in a.rhos)
    assert fold.finish(zero) == tuple((d * n * t % p,) * n for p, n, t in zip(chosen.moduli, a.rhos, tops, strict=True))


def test_a_mask_folds_without_being_held() -> None:
    chosen, d, size = plan(10, 4, level=Level.MALICIOUS), 1500, 600
    stream = mask_stream(Secret(bytes([1] * 32)), MaskContext(bytes(32), 1, size), chosen.moduli)
    by_seed = Fold(bytes(32), chosen, d, size)
    held = by_seed.sibling()
    for index in range(3):
        n = min(size, d - size * index)
        held.update(index, stream.chunk(index, n))
        by_seed.update_mask(index, stream)
    blind = tamper.blinders(chosen, bytes)
    assert by_seed.finish(blind) == held.finish(blind)


def test_a_chunk_from_a_message_needs_no_other_machine_code() -> None:
    """Bytes that cannot be written are another type to the compiler."""
    chosen = fields(503, 509)
    fold = Fold(bytes(32), chosen, 100, 100)
    fold.sibling().update_packed(0, np.zeros(sum(chosen.plane_bytes(100)), np.uint8))
    before = list(fold_module._fold_plane.signatures)  # type: ignore[attr-defined]
    fold.update_packed(0, np.frombuffer(bytes(sum(chosen.plane_bytes(100))), np.uint8))
    assert fold_module._fold_plane.signatures == before  # type: ignore[attr-defined]


def test_a_packed_chunk_of_another_size_is_refused() -> None:
    chosen = fields(503, 509)
    fold = Fold(bytes(32), chosen, 100, 64)
    whole = np.zeros(sum(chosen.plane_bytes(64)), np.uint8)
    for part, held in ((whole[1:], None), (whole, 63), (whole, 72), (np.append(whole, whole[:1]), None)):
        with pytest.raises(LocalFault, match="chunk 0 has 64 parameters"):
            fold.update_packed(0, part, held)
    fold.update_packed(0, whole)
    with pytest.raises(LocalFault, match="already"):
        fold.update_packed(0, whole)


def test_coefficients_depend_on_coin_plane_row_and_block() -> None:
    held = [Coefficients(coin, fields(503, 509), 2 * BLOCK, 2 * BLOCK) for coin in (bytes(32), b"\x01" * 32)]
    across = [row.tobytes() for a in held for block in a.blocks for row in block]
    assert len(set(across)) == len(across) == 2 * 2 * 9
    outer = [row.tobytes() for a in held for plane in a.chunk(0) for matrix in plane for row in matrix]
    assert len(set(outer)) == len(outer) == 2 * 2 * 2 * 9


def test_coefficients_are_expanded_as_masks_are() -> None:
    chosen, coin, d, size = fields(503, 1048573), bytes(range(32)), 2 * BLOCK + 700, BLOCK + 1
    held = Coefficients(coin, chosen, d, size)

    def drawn(domain: str, moduli: list[int], index: int, length: int) -> list[Ints]:
        info = reference.frame(domain, chosen.digest, d, size)
        return [np.array(row) for row in reference.mask(coin, info, moduli, index, length)]

    for plane, (n, row) in enumerate(zip((9, 5), drawn("tamper-block", [503, 2**15], 0, 9 * BLOCK), strict=True)):
        assert held.blocks[plane].tolist() == row.reshape(9, BLOCK)[:n].tolist()
    for index, blocks in enumerate((2, 2, 1)):
        for plane, (n, row) in enumerate(
            zip((9, 5), drawn("tamper-outer", [503, 1048573], index, 81 * blocks), strict=True)
        ):
            assert held.chunk(index)[plane].tolist() == row.reshape(blocks, 9, 9)[:, :n, :n].tolist()


def test_coefficients_refuse_an_empty_model() -> None:
    with pytest.raises(LocalFault, match="d is 0"):
        Coefficients(bytes(32), fields(503), 0, 4)


# What the scalars give away, counted over every blinder and mask (rho = 1; the coin is the coefficient vector a).


@cache
def everything(p: int, n: int) -> Ints:
    """All vectors of F_p^n, as rows."""
    return np.ascontiguousarray(np.indices((p,) * n).reshape(n, -1).T)


def functional(p: int, a: Sequence[int], v: Ints) -> Ints:
    """l over the last axis of v: d coordinates and one blinder."""
    return np.asarray((v[..., :-1] @ np.array(a, np.int64) + v[..., -1]) % p)


@dataclass(frozen=True)
class Outcomes:
    """One attempt of n silos and k hops, at once for all randomness: the first axis enumerates it.

    A mask layer whose sigma is published like any hop's may be read as the aggregator's, whose sigma is not: the check
    must hide the inputs even from those who know it.
    """

    x: Ints  # (all, silo, d + 1), with blinders
    masks: Ints  # (all, silo, hop, d + 1)
    sent: Ints  # (all, silo, d + 1)


def outcomes(p: int, inputs: Ints, hops: int, *, blind: bool = True) -> Outcomes:
    n, d = inputs.shape
    randomness = everything(p, n * (blind + hops * (d + 1)))
    rows = len(randomness)
    blinders = randomness[:, :n] if blind else np.zeros((rows, n), np.int64)
    masks = randomness[:, n * blind :].reshape(rows, n, hops, d + 1)
    x = np.concatenate([np.broadcast_to(inputs, (rows, n, d)), blinders[..., None]], axis=2)
    return Outcomes(x, masks, (x + masks.sum(axis=2)) % p)


def distribution(p: int, *columns: Ints) -> bytes:
    """How often each view occurs: the counts of all p^digits of them."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for digit in np.concatenate([c.reshape(len(c), -1) for c in columns], axis=1).T:
        code, size = code + digit * size, size * p
    return np.bincount(code, minlength=size).tobytes()


def published(p: int, a: Sequence[int], run: Outcomes) -> tuple[Ints, Ints]:
    """l(c_i) and sigma_{i,h}; l(in_h) and l(out_h) follow from these."""
    return functional(p, a, run.sent), functional(p, a, run.masks)


def blinder_sum(p: int, run: Outcomes) -> Ints:
    """What the aggregator sees beside the sum of the inputs, by which the views are grouped."""
    return np.asarray(run.x[..., -1].sum(axis=1, keepdims=True) % p)


def all_inputs(p: int, n: int, d: int) -> Iterable[Ints]:
    return (row.reshape(n, d) for row in everything(p, n * d))


def total(p: int, inputs: Ints) -> tuple[int, ...]:
    return tuple((inputs.sum(axis=0) % p).tolist())


TINY = [(2, 1, 2, 2), (2, 2, 2, 2), (2, 2, 3, 1), (3, 1, 2, 2), (3, 2, 2, 1), (3, 1, 3, 1), (5, 1, 2, 1)]
tiny = pytest.mark.parametrize(("p", "d", "n", "hops"), TINY)


@tiny
def test_scalars_say_nothing_alone_and_no_more_than_the_sum_with_it(p: int, d: int, n: int, hops: int) -> None:
    alone, views = defaultdict(set), defaultdict(set)
    for x in all_inputs(p, n, d):
        run = outcomes(p, x, hops)
        for a in product(range(p), repeat=d):
            seen = published(p, a, run)
            alone[a].add(distribution(p, *seen))
            views[a, total(p, x)].add(distribution(p, *seen, blinder_sum(p, run)))
    assert (len(alone), len(views)) == (p**d, p ** (2 * d))
    assert all(len(same) == 1 for same in (*alone.values(), *views.values()))


@pytest.mark.parametrize(("p", "d", "n"), [(2, 2, 3), (3, 2, 2), (3, 1, 3), (5, 1, 2)])
def test_everybody_but_one_hop_learns_no_more_than_the_sum(p: int, d: int, n: int) -> None:
    """They hold every c_i without the other hops' masks and the aggregator's, the sum, and all that is published."""
    views = defaultdict(set)
    for x in all_inputs(p, n, d):
        run = outcomes(p, x, 1)
        for a in product(range(p), repeat=d):
            _, sigma = published(p, a, run)
            views[a, total(p, x)].add(distribution(p, run.sent, sigma, blinder_sum(p, run)))
    assert len(views) == p ** (2 * d)
    assert all(len(same) == 1 for same in views.values())


def test_a_colluding_silo_learns_the_sum_of_the_others() -> None:
    """As above, and the last silo gives up its input and blinder too."""
    p, a = 3, (2,)
    views = defaultdict(set)
    for x in all_inputs(p, 3, 1):
        run = outcomes(p, x, 1)
        _, sigma = published(p, a, run)
        known = (*total(p, x[:2]), *x[2].tolist())
        views[known].add(distribution(p, run.sent, sigma, blinder_sum(p, run), run.x[:, 2, -1]))
    assert len(views) == 9
    assert all(len(same) == 1 for same in views.values())


@pytest.mark.parametrize(("p", "d"), [(2, 1), (2, 2), (3, 1), (3, 2), (5, 1)])
def test_without_blinders_the_scalars_leak(p: int, d: int) -> None:
    """The negative control of the tests above: inputs are told apart, also among those with the same sum."""
    for a in product(range(p), repeat=d):
        alone, views = set(), defaultdict(set)
        for x in all_inputs(p, 2, d):
            view = distribution(p, *published(p, a, outcomes(p, x, 1, blind=False)))
            alone.add(view)
            views[total(p, x)].add(view)
        if any(a):
            assert len(alone) == p**2  # <a, x_i> of either silo
            assert all(len(same) == p for same in views.values())


@pytest.mark.parametrize("p", [2, 3])
def test_two_answers_under_two_coins_leak_everything(p: int) -> None:
    """Why an attempt has one coin: with d = 1 the difference of two answers is the input itself."""
    for (a,), (b,) in combinations(product(range(p), repeat=1), 2):
        for x in all_inputs(p, 2, 1):
            run = outcomes(p, x, 1)
            (sent_a, sigma_a), (sent_b, sigma_b) = published(p, (a,), run), published(p, (b,), run)
            difference = (sent_a - sigma_a[..., 0]) - (sent_b - sigma_b[..., 0])
            guess = difference * pow(a - b, -1, p) % p
            assert (guess == x[:, 0]).all()


@pytest.mark.parametrize("p", [2, 3, 5])
def test_two_silos_under_two_coins_leak(p: int) -> None:
    """Why the cohort signs one ballot: the aggregator's sum of blinders ties the answers together. (No hops.)"""
    for a, b in product(range(p), repeat=2):
        views = defaultdict(set)
        for x in all_inputs(p, 2, 1):
            run = outcomes(p, x, 0)
            seen = (functional(p, (a,), run.x[:, :1]), functional(p, (b,), run.x[:, 1:]), blinder_sum(p, run))
            views[total(p, x)].add(distribution(p, *seen))
        assert {len(same) for same in views.values()} == {1 if a == b else p}


@pytest.mark.parametrize("p", [2, 3])
def test_fresh_blinders_allow_another_coin(p: int) -> None:
    """A new attempt draws new blinders: its answers are independent of the first ones. (No hops: the least hidden.)"""
    for a, b in product(range(p), repeat=2):
        views = defaultdict(set)
        for x in all_inputs(p, 2, 1):
            run = outcomes(p, x, 0)
            pairs = np.indices((len(run.x),) * 2).reshape(2, -1)
            one, two = run.x[pairs[0]], run.x[pairs[1]]
            seen = (functional(p, (a,), one), functional(p, (b,), two), one.sum(axis=1) % p, two.sum(axis=1) % p)
            views[total(p, x)].add(distribution(p, *seen))
        assert all(len(same) == 1 for same in views.values())


# The error bound, counted over every coin, through the code that nodes run.


@pytest.mark.parametrize(
    ("p", "places", "bits", "rho"),
    [
        (2, [0], 0, 1),
        (2, [0, 5], 0, 1),
        (3, [7, 8], 0, 1),
        (5, [0], 1, 1),
        (3, [BLOCK - 1, BLOCK], 0, 1),  # in two blocks
        (2, [3, BLOCK, 2 * BLOCK], 0, 1),
        (2, [0, 1], 1, 2),
        (2, [0, BLOCK], 1, 2),
    ],
)
def test_an_error_passes_with_the_probability_that_is_claimed(
    p: int, places: list[int], bits: int, rho: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every A and M is tried, in the columns where there is an error; elsewhere they make no difference."""
    monkeypatch.setattr(fold_module, "SOUNDNESS_BITS", bits)
    chosen, d = fields(p), places[-1] + 1
    assert tamper.rhos(chosen) == (rho,)
    errors = [e for e in product(range(p), repeat=len(places) + rho) if any(e)]
    unseen = dict.fromkeys(errors, 0)
    first = Fold(bytes(32), chosen, d, d)
    held, blocks = first._coefficients, -(-d // BLOCK)
    columns = sorted({at % BLOCK for at in places})
    hit = sorted({at // BLOCK for at in places})
    coins = 0
    for a in product(range(p), repeat=rho * len(columns)):
        across = np.ones((rho, BLOCK), np.uint16)
        across[:, columns] = np.reshape(a, (rho, -1))
        held.blocks = (across,)
        for m in product(range(p), repeat=rho * rho * len(hit)):
            outer = np.ones((blocks, rho, rho), np.uint16)
            outer[hit] = np.reshape(m, (-1, rho, rho))
            held._latest, coins = (0, (outer,)), coins + 1
            for e in errors:
                row = np.zeros((1, d), np.uint16)
                row[0, places] = e[: len(places)]
                fold = first.sibling()
                fold.update(0, row)
                unseen[e] += fold.finish((e[len(places) :],)) == ((0,) * rho,)
    q = Fraction(1, p**rho)
    for e in errors:
        passes = Fraction(unseen[e], coins)
        assert passes < 2 * q
        if not any(e[: len(places)]):
            assert passes == 0  # an error in blinders alone is seen under every coin
        elif sum(map(bool, e[: len(places)])) == 1:
            # A gives zero, and then the blinders' error shows; or it does not, and M makes up for the blinders' error.
            assert passes == (1 - q) * q + (0 if any(e[len(places) :]) else q)


# Whole runs, honest and not.


@dataclass
class World:
    """Silos, hops and their vectors. `forge` stands for what a node holds in place of what it should."""

    plan: Plan
    d: int
    size: int
    coin: bytes
    x: dict[str, Extended]
    masks: dict[str, dict[str, Extended]]  # by silo, then hop
    layer: dict[str, Extended]  # the aggregator's

    @property
    def chain(self) -> list[str]:
        return list(next(iter(self.masks.values())))

    def sent(self, silo: str) -> Extended:
        return add(self.plan, self.x[silo], *self.masks[silo].values(), self.layer[silo])

    def scalars(self, *vectors: Extended) -> list[Scalars]:
        return scalars(self.coin, self.plan, self.d, self.size, vectors)

    def run(
        self, forge: Callable[[str, str, Extended], Extended] = lambda node, what, v: v, drop: str | None = None
    ) -> Transcript:
        held = add(self.plan, *(self.sent(silo) for silo in self.x if silo != drop))
        ends: list[Extended] = []
        for hop in self.chain:
            ends.append(taken := forge(hop, "taken", held))
            held = subtract(self.plan, taken, add(self.plan, *(masks[hop] for masks in self.masks.values())))
            ends.append(held := forge(hop, "sent", held))
        ends.append(forge("aggregator", "taken", held))
        silos = [v for silo in self.x for v in (self.sent(silo), *self.masks[silo].values())]
        values = iter(self.scalars(*silos, *ends))
        submissions = [Submission(silo, next(values), tuple(next(values) for _ in self.chain)) for silo in self.x]
        passages = [Passage(hop, next(values), next(values)) for hop in self.chain]
        return Transcript(tuple(submissions), tuple(passages), Arrival("aggregator", next(values)))

    def sigma(self, hop: str) -> dict[str, Scalars]:
        """What the hop computes from the seeds that it can open."""
        return dict(zip(self.x, self.scalars(*(self.masks[silo][hop] for silo in self.x)), strict=True))

    def verify(self, transcript: Transcript) -> list[Finding]:
        return tamper.verify(self.plan, list(self.x), self.chain, transcript)

    def judge(self, transcript: Transcript, finding: Finding, opened: dict[str, Scalars]) -> tuple[str, ...]:
        return tamper.arbitrate(self.plan, transcript, finding, opened)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    chosen = draw(plans)
    d, size = draw(st.integers(1, 12)), draw(st.integers(3, 13))
    numbers = np.random.default_rng(draw(seeds))
    silos = [f"silo-{i}" for i in range(draw(st.integers(2, 4)))]
    hops = [f"hop-{h}" for h in range(1, draw(st.integers(1, 3)) + 1)]

    def vector() -> Extended:
        return draw_vector(numbers, chosen, d)

    return World(
        chosen,
        d,
        size,
        draw(coins),
        {silo: vector() for silo in silos},
        {silo: {hop: vector() for hop in hops} for silo in silos},
        {silo: vector() for silo in silos},
    )


def change(world: World, data: st.DataObject, vector: Extended, *, blinder: bool = False) -> Extended:
    """Alter one coordinate in one plane."""
    plane = data.draw(st.integers(0, len(world.plan.moduli) - 1))
    p, d, n = world.plan.moduli[plane], world.d, tamper.rhos(world.plan)[plane]
    at = data.draw(st.integers(d, d + n - 1) if blinder else st.integers(0, d - 1))
    out = [row.copy() for row in vector]
    out[plane][at] = (out[plane][at] + data.draw(st.integers(1, p - 1))) % p
    return out


def misstate(world: World, data: st.DataObject, value: Scalars) -> Scalars:
    """State one scalar wrongly."""
    plane = data.draw(st.integers(0, len(value) - 1))
    j = data.draw(st.integers(0, len(value[plane]) - 1))
    p = world.plan.moduli[plane]
    wrong = (value[plane][j] + data.draw(st.integers(1, p - 1))) % p
    row = (*value[plane][:j], wrong, *value[plane][j + 1 :])
    return (*value[:plane], row, *value[plane + 1 :])


def places(findings: list[Finding]) -> set[tuple[EquationKind, str]]:
    return {(f.kind, f.where) for f in findings}


@quick
@given(worlds())
def test_honest_runs_verify(world: World) -> None:
    transcript = world.run()
    assert world.verify(transcript) == []
    # What is left at the aggregator opens to l of the sum, and to nothing of a single silo.
    (layer, opened) = world.scalars(add(world.plan, *world.layer.values()), add(world.plan, *world.x.values()))
    assert transcript.arrival.taken == plus(world.plan, opened, layer)


@quick
@given(worlds(), st.data())
def test_a_group_is_recognised_by_its_scalars(world: World, data: st.DataObject) -> None:
    """A limit: who has the sum of a group and the published scalars finds the only subset that balances."""
    group = data.draw(st.sets(st.sampled_from(list(world.x)), min_size=1))
    (received,) = world.scalars(add(world.plan, *(add(world.plan, world.x[s], world.layer[s]) for s in group)))
    open_by_silo = {}
    for s in world.run().submissions:
        masks = reduce(partial(plus, world.plan), s.masks)
        negative = tuple(tuple(-m % p for m in row) for p, row in zip(world.plan.moduli, masks, strict=True))
        open_by_silo[s.silo] = plus(world.plan, s.sent, negative)
    subsets = [set(c) for n in range(1, len(world.x) + 1) for c in combinations(world.x, n)]
    balancing = [c for c in subsets if reduce(partial(plus, world.plan), (open_by_silo[s] for s in c)) == received]
    assert balancing == [group]


@quick
@given(worlds(), st.data())
def test_silo_that_misstates_a_sigma_is_named(world: World, data: st.DataObject) -> None:
    transcript = world.run()
    i, h = data.draw(st.integers(0, len(world.x) - 1)), data.draw(st.integers(0, len(world.chain) - 1))
    honest = transcript.submissions[i]
    masks = list(honest.masks)
    masks[h] = misstate(world, data, masks[h])
    lied = list(transcript.submissions)
    lied[i] = replace(honest, masks=tuple(masks))
    transcript = replace(transcript, submissions=tuple(lied))
    hop = world.chain[h]
    findings = world.verify(transcript)
    assert places(findings) == {(EquationKind.HOP, hop)}
    truth = world.sigma(hop)
    assert world.judge(transcript, findings[0], truth) == (honest.silo,)
    assert world.judge(transcript, findings[0], {honest.silo: truth[honest.silo]}) == (honest.silo,)
    # A hop that opens an honest silo instead, or nobody, explains nothing.
    other = next(s for s in world.x if s != honest.silo)
    assert world.judge(transcript, findings[0], {other: truth[other]}) == (hop,)
    assert world.judge(transcript, findings[0], {}) == (hop,)


@quick
@given(worlds(), st.data())
def test_silo_that_masks_with_another_seed_than_it_sealed_is_named(world: World, data: st.DataObject) -> None:
    silo, hop = data.draw(st.sampled_from(list(world.x))), data.draw(st.sampled_from(world.chain))
    transcript = world.run()
    sealed = change(world, data, world.masks[silo][hop])
    used, world.masks[silo][hop] = world.masks[silo][hop], sealed
    # The hop takes off what was sealed; from there on everybody holds what differs by (used - sealed).
    error = subtract(world.plan, used, sealed)
    passages, after = [], False
    (slip,) = world.scalars(error)
    for passage in transcript.passages:
        taken = plus(world.plan, passage.taken, slip) if after else passage.taken
        after = after or passage.hop == hop
        passages.append(Passage(passage.hop, taken, plus(world.plan, passage.sent, slip) if after else passage.sent))
    arrival = Arrival("aggregator", plus(world.plan, transcript.arrival.taken, slip))
    transcript = Transcript(transcript.submissions, tuple(passages), arrival)
    findings = world.verify(transcript)
    assert places(findings) == {(EquationKind.HOP, hop)}
    assert world.judge(transcript, findings[0], world.sigma(hop)) == (silo,)


@quick
@given(worlds(), st.data(), st.booleans())
def test_hop_that_alters_one_coordinate_is_named(world: World, data: st.DataObject, blinder: bool) -> None:
    hop = data.draw(st.sampled_from(world.chain))

    def forge(node: str, what: str, v: Extended) -> Extended:
        return change(world, data, v, blinder=blinder) if (node, what) == (hop, "sent") else v

    transcript = world.run(forge)
    findings = world.verify(transcript)
    assert places(findings) == {(EquationKind.HOP, hop)}
    assert world.judge(transcript, findings[0], world.sigma(hop)) == (hop,)
    assert world.judge(transcript, findings[0], {}) == (hop,)


@quick
@given(worlds(), st.data())
def test_hop_that_alters_and_states_the_honest_scalar_is_named(world: World, data: st.DataObject) -> None:
    """Then its own equation balances and the next edge does not: at the last hop only the aggregator can see it."""
    h = data.draw(st.integers(0, len(world.chain) - 1))
    hop = world.chain[h]
    honest = world.run()

    def forge(node: str, what: str, v: Extended) -> Extended:
        return change(world, data, v) if (node, what) == (hop, "sent") else v

    forged = world.run(forge)
    signed = forged.passages[h].sent  # l of the body that the hop signed
    passages = list(forged.passages)
    passages[h] = honest.passages[h]
    transcript = replace(forged, passages=tuple(passages))
    findings = world.verify(transcript)
    receiver = [*world.chain, "aggregator"][h + 1]
    assert places(findings) == {(EquationKind.EDGE, receiver)}
    assert world.judge(transcript, findings[0], {hop: signed}) == (hop,)


@quick
@given(worlds(), st.data())
def test_receiver_that_alters_what_it_took_in_is_named(world: World, data: st.DataObject) -> None:
    """The altered edge: the body that the sender signed agrees with the sender, so the receiver lied."""
    h = data.draw(st.integers(0, len(world.chain)))
    receiver = [*world.chain, "aggregator"][h]

    def forge(node: str, what: str, v: Extended) -> Extended:
        return change(world, data, v) if (node, what) == (receiver, "taken") else v

    transcript = world.run(forge)
    findings = world.verify(transcript)
    assert places(findings) == {(EquationKind.EDGE, receiver)}
    if h == 0:
        bodies = dict(zip(world.x, world.scalars(*map(world.sent, world.x)), strict=True))
    else:
        bodies = {world.chain[h - 1]: transcript.passages[h - 1].sent}
    assert world.judge(transcript, findings[0], bodies) == (receiver,)


@quick
@given(worlds(), st.data())
def test_silo_that_misstates_what_it_sent_is_named(world: World, data: st.DataObject) -> None:
    transcript = world.run()
    i = data.draw(st.integers(0, len(world.x) - 1))
    honest = transcript.submissions[i]
    lied = list(transcript.submissions)
    lied[i] = replace(honest, sent=misstate(world, data, honest.sent))
    transcript = replace(transcript, submissions=tuple(lied))
    findings = world.verify(transcript)
    assert places(findings) == {(EquationKind.EDGE, world.chain[0])}
    assert world.judge(transcript, findings[0], {honest.silo: honest.sent}) == (honest.silo,)


@quick
@given(worlds(), st.data())
def test_first_hop_that_drops_a_silo_is_named(world: World, data: st.DataObject) -> None:
    transcript = world.run(drop=data.draw(st.sampled_from(list(world.x))))
    findings = world.verify(transcript)
    assert places(findings) == {(EquationKind.EDGE, world.chain[0])}
    bodies = {s.silo: s.sent for s in transcript.submissions}
    assert world.judge(transcript, findings[0], bodies) == (world.chain[0],)


@quick
@given(worlds(), st.data())
def test_a_lying_silo_does_not_cover_for_a_lying_hop(world: World, data: st.DataObject) -> None:
    hop = world.chain[0]

    def forge(node: str, what: str, v: Extended) -> Extended:
        return change(world, data, v) if (node, what) == (hop, "sent") else v

    transcript = world.run(forge)
    honest = transcript.submissions[0]
    lie = replace(honest, masks=(misstate(world, data, honest.masks[0]), *honest.masks[1:]))
    transcript = replace(transcript, submissions=(lie, *transcript.submissions[1:]))
    finding = Finding(EquationKind.HOP, hop, 0)
    assert world.judge(transcript, finding, world.sigma(hop)) == (honest.silo, hop)


@quick
@given(worlds(), st.data())
def test_every_finding_stands_in_the_order_of_the_chain(world: World, data: st.DataObject) -> None:
    """Everybody lies: the first finding is the edge into the first hop."""
    transcript = world.run(lambda node, what, v: change(world, data, v))
    order = [(kind, hop) for hop in world.chain for kind in (EquationKind.EDGE, EquationKind.HOP)] + [
        (EquationKind.EDGE, "aggregator")
    ]
    found = [(f.kind, f.where) for f in world.verify(transcript)]
    assert list(dict.fromkeys(found)) == order


def test_scalars_must_be_complete_and_canonical() -> None:
    chosen = fields(503)
    row = ((1,) * 9,)

    def check(silo: Submission, cohort: Sequence[str] = ("s",), hop: str = "h") -> list[Finding]:
        transcript = Transcript((silo,), (Passage(hop, row, row),), Arrival("a", row))
        return tamper.verify(chosen, cohort, ["h"], transcript)

    zero = ((0,) * 9,)
    assert check(Submission("s", row, (zero,))) == []
    refused: list[tuple[Submission, Reason]] = [
        (Submission("s", row, ()), Reason.WRONG_LENGTH),
        (Submission("s", ((1,) * 8,), (zero,)), Reason.WRONG_LENGTH),
        (Submission("s", (*row, *row), (zero,)), Reason.WRONG_LENGTH),
        (Submission("s", ((504,) * 9,), (zero,)), Reason.RESIDUE_RANGE),
        (Submission("s", row, (((-503,) * 9,),)), Reason.RESIDUE_RANGE),
    ]
    for submission, reason in refused:
        with pytest.raises(PeerFault) as fault:
            check(submission)
        assert (fault.value.reason, fault.value.details["node"]) == (reason, "s")
    with pytest.raises(LocalFault, match="wait for"):
        check(Submission("s", row, (zero,)), cohort=("s", "t"))
    with pytest.raises(LocalFault, match="wait for"):
        check(Submission("s", row, (zero,)), hop="g")
    with pytest.raises(LocalFault, match="share a name"):
        check(Submission("a", row, (zero,)), cohort=("a",))
    transcript = Transcript((Submission("s", row, (zero,)),), (Passage("h", row, row),), Arrival("a", row))
    with pytest.raises(LocalFault, match="no hop at g"):
        tamper.arbitrate(chosen, transcript, Finding(EquationKind.HOP, "g", 0), {})
