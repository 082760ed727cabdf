"""Protocol section 4: masks are exactly uniform, bound to their round, sealed to one node, and cancel only together."""

import traceback
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from math import gcd, sqrt
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vectors import generate, reference

from silomix.runtime.core import masks, residue
from silomix.runtime.core.codec import Codec, Layout, Schema, TensorSpec
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.masks import (
    AGGREGATOR,
    SEALED_BYTES,
    MaskContext,
    Secret,
    Stream,
    add_mask,
    commitment,
    derive,
    mask_stream,
    public_key,
    remove_mask,
    seal,
    unseal,
)
from silomix.runtime.core.packing import Residues
from silomix.runtime.core.plan import Encoding, Level, Plan, Quantiser, plan

MASKS = generate.load("mask.json")["good"]
SEALS = generate.load("seal.json")
MODULI = [tuple(moduli) for moduli in generate.MASK_MODULI]


def context_of(vector: reference.Json) -> MaskContext:
    digests = {name: bytes.fromhex(vector[name]) for name in ("federation", "model", "schema", "plan")}
    return MaskContext(**{**vector, **digests})


CONTEXT = context_of(generate.CONTEXT)
OTHERS = {name: context_of({**generate.CONTEXT, name: value}) for name, value in generate.OTHER.items()}
"""The same context with one field changed."""


def seed_of(name: object) -> Secret:
    return Secret(sha256(str(name).encode()).digest())


def stream(moduli: tuple[int, ...], context: MaskContext = CONTEXT, seed: object = 0) -> Stream:
    return mask_stream(seed_of(seed), context, moduli)


def by_reference(
    moduli: tuple[int, ...], context: MaskContext, seed: object, index: int, length: int
) -> list[list[int]]:
    return reference.mask(seed_of(seed).value, context.info(), moduli, context.chunk_parameters, index, length)


def with_moduli(*moduli: int) -> Plan:
    return Plan(3, 1, Encoding.COUNTS, Level.SEMI_HONEST, 1, 0, Quantiser.DECIMAL, moduli)


# The vectors, and the reference beyond them.


@pytest.mark.parametrize("vector", MASKS, ids=lambda v: f"{v['moduli']} {v['index']} {v['length']}")
def test_the_mask_vectors(vector: reference.Json) -> None:
    context, moduli = context_of(vector["context"]), tuple(vector["moduli"])
    assert context.info().hex() == vector["info"]
    rows = mask_stream(Secret(bytes.fromhex(vector["seed"])), context, moduli).chunk(vector["index"], vector["length"])
    assert rows.shape == (len(moduli), vector["length"])
    assert rows.dtype == residue.plan_dtype(with_moduli(*moduli))
    planes = [reference.pack(row.tolist(), reference.width_of(m)).hex() for row, m in zip(rows, moduli, strict=True)]
    assert planes == vector["planes"]


@st.composite
def coprime(draw: st.DrawFn) -> tuple[int, ...]:
    chosen: list[int] = []
    for m in draw(st.lists(st.integers(2, 300) | st.integers(2, 1 << 20), min_size=1, max_size=4)):
        if all(gcd(m, c) == 1 for c in chosen):
            chosen.append(m)
    return tuple(chosen)


@settings(max_examples=60)
@given(moduli=coprime(), chunk_parameters=st.integers(1, 150), index=st.integers(0, 2**40), data=st.data())
def test_any_chunk_is_that_of_the_reference(
    moduli: tuple[int, ...], chunk_parameters: int, index: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, chunk_parameters))
    context = replace(CONTEXT, chunk_parameters=chunk_parameters)
    rows = stream(moduli, context, index).chunk(index, length)
    assert rows.tolist() == by_reference(moduli, context, index, index, length)


@pytest.mark.parametrize("moduli", [(257,), (65_537,), (17, 511)])
def test_a_full_chunk_with_more_redraws_than_one_lot(moduli: tuple[int, ...]) -> None:
    context = replace(CONTEXT, chunk_parameters=65_536)
    rows = stream(moduli, context).chunk(3, 65_536)
    assert rows.tolist() == by_reference(moduli, context, 0, 3, 65_536)


@pytest.mark.parametrize("moduli", [(257,), (65_537,), (17, 129)])
def test_lots_of_any_size_give_the_same_redraws(moduli: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_LOT", 16)
    context = replace(CONTEXT, chunk_parameters=200)
    for seed in range(30):
        assert stream(moduli, context, seed).chunk(0, 200).tolist() == by_reference(moduli, context, seed, 0, 200)


def test_keys_are_derived_by_hkdf() -> None:
    for secret, info in ((bytes(32), b""), (bytes(range(32)), CONTEXT.info())):
        assert derive(secret, info) == reference.expand(reference.extract(b"", secret), info, 32)


# Streams.


@pytest.mark.parametrize("moduli", MODULI, ids=str)
def test_chunks_come_in_any_order(moduli: tuple[int, ...]) -> None:
    alone = {i: stream(moduli).chunk(i, 64).tolist() for i in range(5)}
    shared = stream(moduli)
    for i in (4, 0, 3, 3, 1, 2, 0):
        assert shared.chunk(i, 64).tolist() == alone[i]
    assert len({str(chunk) for chunk in alone.values()}) == 5


@pytest.mark.parametrize("moduli", MODULI, ids=str)
def test_a_shorter_chunk_begins_alike_and_packs_its_planes_closer(moduli: tuple[int, ...]) -> None:
    full, short = stream(moduli).chunk(7, 64), stream(moduli).chunk(7, 40)
    assert short[0].tolist() == full[0, :40].tolist()
    assert short.tolist() == by_reference(moduli, CONTEXT, 0, 7, 40)
    for j in range(1, len(moduli)):
        assert short[j].tolist() != full[j, :40].tolist()


@pytest.mark.parametrize("moduli", MODULI, ids=str)
@pytest.mark.parametrize("margin", [-30, -8, 8])
def test_a_lot_of_redraws_that_is_too_small_changes_nothing(
    moduli: tuple[int, ...], margin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn ahead is a guess: where it falls short, more is drawn, and the residues are the same."""
    context = replace(CONTEXT, chunk_parameters=5000)
    monkeypatch.setattr(masks, "_MARGIN", margin)
    assert stream(moduli, context).chunk(1, 4999).tolist() == by_reference(moduli, context, 0, 1, 4999)


@pytest.mark.parametrize("name", generate.OTHER)
def test_every_field_of_the_context_counts(name: str) -> None:
    ours, theirs = (stream((512, 511), c).chunk(1, 60) for c in (CONTEXT, OTHERS[name]))
    assert np.mean(ours == theirs) < 0.1
    assert commitment(seed_of(0), CONTEXT) != commitment(seed_of(0), OTHERS[name])


def test_a_context_names_no_silo_and_is_unambiguous() -> None:
    infos = {context.info() for context in (CONTEXT, *OTHERS.values())}
    assert len(infos) == 1 + len(OTHERS)
    assert replace(CONTEXT, round=1, attempt=11).info() != replace(CONTEXT, round=11, attempt=1).info()


def test_no_block_of_the_key_stream_is_used_twice() -> None:
    # With moduli 256 and 65536 nothing is cut: the residues are the key stream.
    for moduli, fields in (((256,), (np.uint8,)), ((65_536,), (np.uint16,)), ((256, 65_536), (np.uint8, np.uint16))):
        context = replace(CONTEXT, chunk_parameters=48)
        mask = stream(moduli, context)
        blocks: list[bytes] = []
        for i in range(50):
            rows = mask.chunk(i, 48)
            raw = b"".join(row.astype(kind).tobytes() for row, kind in zip(rows, fields, strict=True))
            blocks += [raw[at : at + 16] for at in range(0, len(raw), 16)]
        assert len(set(blocks)) == len(blocks) == 150 * sum(np.dtype(kind).itemsize for kind in fields)


@pytest.mark.parametrize("m", [2, 3, 5, 17, 129, 255, 257, 511])
def test_masks_are_uniform(m: int) -> None:
    context = replace(CONTEXT, chunk_parameters=50_000)
    mask = stream((m,), context, seed=m)
    counts = np.bincount(np.concatenate([mask.chunk(i, 50_000)[0] for i in range(4)]), minlength=m)
    expected = 200_000 / m
    chi_square = float(np.sum((counts - expected) ** 2) / expected)
    assert len(counts) == m
    assert abs(chi_square - (m - 1)) < 6 * sqrt(2 * (m - 1))


@pytest.mark.parametrize("length", [-1, 65])
def test_a_chunk_has_no_more_than_its_parameters(length: int) -> None:
    with pytest.raises(ValueError, match="at most 64"):
        stream((512, 511)).apply(np.zeros((2, 99), np.uint16), 0, 0, length)


@pytest.mark.parametrize(
    ("shape", "kind", "start"), [((1, 64), "u2", 0), ((2, 64), "u4", 0), ((2, 64), "u2", 1), ((2, 64), "u2", -1)]
)
def test_a_mask_fits_where_it_is_added(shape: tuple[int, int], kind: str, start: int) -> None:
    with pytest.raises(ValueError, match="do not hold 64 residues"):
        stream((512, 511)).apply(np.zeros(shape, kind), 0, start, 64)


def test_a_stream_takes_material_of_one_length() -> None:
    for size in (0, 16, 31, 33):
        with pytest.raises(ValueError, match="32 bytes"):
            Stream(bytes(size), (512, 511), 64)


# Masking and taking off.


@pytest.mark.parametrize("moduli", MODULI, ids=str)
def test_a_mask_that_is_added_and_removed_leaves_nothing(moduli: tuple[int, ...]) -> None:
    kind: npt.DTypeLike = residue.plan_dtype(with_moduli(*moduli))
    rng = np.random.default_rng(1)
    plain = np.array([rng.integers(0, m, 150) for m in moduli], kind)
    masked = plain.copy()
    add_mask(masked, stream(moduli), 1, 64, 64, moduli)
    add_mask(masked, stream(moduli), 2, 128, 22, moduli)
    assert np.array_equal(masked[:, :64], plain[:, :64])
    for row, before, m in zip(masked, plain, moduli, strict=True):
        assert (row < m).all()
        assert (row[64:] != before[64:]).any()
    remove_mask(masked, stream(moduli), 2, 128, 22, moduli)
    remove_mask(masked, stream(moduli), 1, 64, 64, moduli)
    assert np.array_equal(masked, plain)


PLANS = {
    "counts": plan(10, 4),
    "malicious": plan(10, 4, level=Level.MALICIOUS),
    "unary": plan(10, 4, Encoding.UNARY),
    "mixed widths": plan(10, 8),
    "weights": plan(10, 4, weight_levels=100),
}
SCHEMA = Schema((TensorSpec("a", (5, 7)), TensorSpec("b", (120,))))


def layers(p: Plan, hops: int, model: bytes = b"m" * 32) -> list[MaskContext]:
    """The aggregator's context and one for each hop."""
    base = MaskContext(b"f" * 32, 3, 1, AGGREGATOR, model, SCHEMA.digest, p.digest, 64)
    return [replace(base, layer=layer) for layer in range(hops + 1)]


def chunks(layout: Layout) -> Iterator[tuple[int, int, int]]:
    return ((i, layout.start(i), layout.length(i)) for i in range(layout.chunks))


def apply(total: Residues, layout: Layout, silo: int, context: MaskContext, *, remove: bool) -> None:
    mask = mask_stream(seed_of((silo, context.layer)), context, layout.plan.moduli)
    for i, start, length in chunks(layout):
        (remove_mask if remove else add_mask)(total, mask, i, start, length, layout.plan.moduli)


def run(p: Plan, hops: int, models: list[bytes]) -> tuple[Residues, list[Residues], Residues]:
    """Mask one body for each silo, add them up and let each layer take its masks off, as if all had seen models[0].

    Returns the plain sum, what each layer saw, and what remains.
    """
    codec = Codec(SCHEMA, (1.0, 1.0), p, 64)
    layout = codec.layout
    plain, total = residue.zeros(p, layout.coordinates), residue.zeros(p, layout.coordinates)
    for silo, model in enumerate(models):
        rng = np.random.default_rng(silo)
        tensors = {t.name: rng.uniform(-1, 1, t.shape).astype(np.float32) for t in SCHEMA.tensors}
        own = residue.zeros(p, layout.coordinates)
        for i, planes in enumerate(codec.encode(tensors, weight=min(silo + 1, p.weight_levels))):
            layout.add(own, i, planes)
        residue.add(plain, own, p)
        for context in layers(p, hops, model):
            apply(own, layout, silo, context, remove=False)
        residue.add(total, own, p)
    seen: list[Residues] = []
    first, *rest = layers(p, hops, models[0])
    for context in (*rest, first):  # the hops in their order, the aggregator last
        seen.append(total.copy())
        for silo in range(len(models)):
            apply(total, layout, silo, context, remove=True)
    return plain, seen, total


@pytest.mark.parametrize("p", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("hops", [1, 3])
def test_the_chain_takes_off_what_the_silos_added(p: Plan, hops: int) -> None:
    plain, seen, total = run(p, hops, [b"m" * 32] * 5)
    assert np.array_equal(total, plain)
    assert len(seen) == hops + 1
    for vector in seen:  # nobody before the aggregator has the sum, nor anything like it
        for row, bare, m in zip(vector, plain, p.moduli, strict=True):
            assert np.mean(row == bare) < 1 / m + 5 * sqrt(1 / m / len(row))


@pytest.mark.parametrize("p", PLANS.values(), ids=PLANS)
def test_silos_that_were_shown_different_models_do_not_cancel(p: Plan) -> None:
    plain, _, total = run(p, 2, [b"m" * 32, b"m" * 32, b"x" * 32])
    for row, bare, m in zip(total, plain, p.moduli, strict=True):
        assert np.mean(row == bare) < 1 / m + 5 * sqrt(1 / m / len(row))


# Seals.


@pytest.mark.parametrize("vector", SEALS["good"], ids=range(len(SEALS["good"])))
def test_the_good_seals(vector: reference.Json) -> None:
    context, private = context_of(vector["context"]), Secret(bytes.fromhex(vector["private"]))
    assert public_key(private).hex() == vector["public"]
    seed = unseal(bytes.fromhex(vector["sealed"]), private, context)
    assert seed.value.hex() == vector["seed"]
    assert commitment(seed, context).hex() == vector["commitment"]


@pytest.mark.parametrize("vector", SEALS["bad"], ids=range(len(SEALS["bad"])))
def test_the_bad_seals(vector: reference.Json) -> None:
    with pytest.raises(PeerFault) as fault:
        unseal(bytes.fromhex(vector["sealed"]), Secret(bytes.fromhex(vector["private"])), context_of(vector["context"]))
    assert fault.value.reason == vector["reason"]


def test_a_seed_comes_back_from_its_seal_alone() -> None:
    seed, private = seed_of("seed"), seed_of("private")
    sealed = seal(seed, public_key(private), CONTEXT)
    assert len(sealed) == SEALED_BYTES == 80
    assert sealed != seal(seed, public_key(private), CONTEXT)
    assert unseal(sealed, private, CONTEXT) == seed
    for context in OTHERS.values():
        with pytest.raises(PeerFault) as fault:
            unseal(sealed, private, context)
        assert fault.value.reason is Reason.SEAL_BROKEN
    with pytest.raises(PeerFault) as fault:
        unseal(sealed, seed_of("another"), CONTEXT)
    assert fault.value.reason is Reason.SEAL_BROKEN


def test_no_bit_of_a_seal_can_change() -> None:
    private = seed_of("private")
    sealed = seal(seed_of("seed"), public_key(private), CONTEXT)
    for bit in range(8 * len(sealed)):  # X25519 itself would not see the top bit of the encapsulated key
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerFault) as fault:
            unseal(bytes(changed), private, CONTEXT)
        assert fault.value.reason is Reason.SEAL_BROKEN
        assert fault.value.details == {"layer": CONTEXT.layer}


@pytest.mark.parametrize("size", [0, 32, 79, 81, 160])
def test_a_seal_of_another_length(size: int) -> None:
    with pytest.raises(PeerFault) as fault:
        unseal(bytes(size), seed_of("private"), CONTEXT)
    assert fault.value.reason is Reason.WRONG_LENGTH
    assert fault.value.details == {"found": size, "expected": 80}


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (b"", Reason.WRONG_LENGTH),
        (bytes(31), Reason.WRONG_LENGTH),
        (bytes(33), Reason.WRONG_LENGTH),
        (bytes(32), Reason.WRONG_KEYS),
        (b"\x01" + bytes(31), Reason.WRONG_KEYS),
        (bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), Reason.WRONG_KEYS),
    ],
    ids=["none", "short", "long", "zero", "one", "order 8"],
)
def test_nothing_is_sealed_to_a_key_that_hides_nothing(key: bytes, reason: Reason) -> None:
    with pytest.raises(PeerFault) as fault:
        seal(seed_of("seed"), key, CONTEXT)
    assert fault.value.reason is reason


# Secrets.


def test_secrets_never_print() -> None:
    secret = seed_of("secret")
    texts = [repr(secret), str(secret), f"{secret}", f"{secret!r}", f"{[secret]} { ({'seed': secret}) }"]
    texts.append(repr(mask_stream(secret, CONTEXT, (512, 511))))
    with pytest.raises(PeerFault) as fault:
        unseal(bytes(80), secret, CONTEXT)
    texts += [str(fault.value), repr(fault.value), repr(fault.value.details)]
    with pytest.raises(ValueError, match="32 bytes") as short:
        Secret(secret.value[:31])
    texts += [str(short.value), repr(short.value)]
    texts.append("".join(traceback.format_exception(fault.value)))
    texts += traceback.TracebackException.from_exception(fault.value, capture_locals=True).format()
    with pytest.raises(PeerFault) as unusable:
        seal(secret, bytes(32), CONTEXT)
    texts += traceback.TracebackException.from_exception(unusable.value, capture_locals=True).format()
    keys = derive(secret.value, CONTEXT.info())
    for text in texts:
        for raw in (secret.value, keys[:16], keys[16:]):
            assert raw.hex() not in text
            assert repr(raw)[2:-1] not in text
            assert repr(raw[:8])[2:-1] not in text


def test_secrets_come_from_the_source_that_is_given() -> None:
    rng = Random(5)
    asked: list[int] = []

    def source(n: int) -> bytes:
        asked.append(n)
        return rng.randbytes(n)

    assert Secret.draw(source) != Secret.draw(source)
    assert asked == [32, 32]


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"not {size}"):
        Secret(bytes(size))
