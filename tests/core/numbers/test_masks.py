"""Protocol section 4: masks are exactly uniform, bound to their round, sealed to one node, and cancel only together."""

import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from math import gcd, sqrt
from pathlib import Path
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import examples
from tests.vectors import generate, reference

from silomix.attacks.active.seized import in_memory
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import masks, residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import (
    AGGREGATOR,
    SEALED_BYTES,
    MaskContext,
    Overwritten,
    Secret,
    Stream,
    commitment,
    derive,
    mask_stream,
    public_key,
    seal,
    small_order,
    unseal,
)
from silomix.runtime.core.numbers.packing import Bytes, Residues
from silomix.runtime.core.numbers.plan import Encoding, Level, Plan, Quantiser, plan
from silomix.runtime.core.numbers.schema import Schema, TensorSpec

MASKS = generate.load("mask.json")["good"]
SEALS = generate.load("seal.json")
MODULI = [tuple(moduli) for moduli in generate.MASK_MODULI]


def context_of(vector: reference.Json) -> MaskContext:
    return MaskContext(**{**vector, "manifest": bytes.fromhex(vector["manifest"])})


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
    return reference.mask(seed_of(seed).value, context.info(), moduli, index, length)


def bytes_of(mask: Stream, moduli: tuple[int, ...], index: int, length: int) -> Bytes:
    """The packed planes of a mask: what it makes of zeros."""
    planes = np.zeros(sum(map(reference.width_of, moduli)) * -(-length // 8), np.uint8)
    mask.apply(planes, index, length)
    return planes


def with_moduli(*moduli: int) -> Plan:
    return Plan(3, 1, Encoding.COUNTS, Level.SEMI_HONEST, 1, 0, Quantiser.DECIMAL, moduli)


# The vectors, and the reference beyond them.


@pytest.mark.parametrize("vector", MASKS, ids=lambda v: f"{v['moduli']} {v['index']} {v['length']}")
def test_the_mask_vectors(vector: reference.Json) -> None:
    context, moduli = context_of(vector["context"]), tuple(vector["moduli"])
    assert context.info().hex() == vector["info"]
    mask = mask_stream(Secret(bytes.fromhex(vector["seed"])), context, moduli)
    assert bytes_of(mask, moduli, vector["index"], vector["length"]).tobytes().hex() == "".join(vector["planes"])
    rows = mask.chunk(vector["index"], vector["length"])
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


@settings(max_examples=examples(60))
@given(moduli=coprime(), chunk_parameters=st.integers(1, 150), index=st.integers(0, 2**40), data=st.data())
def test_any_chunk_is_that_of_the_reference(
    moduli: tuple[int, ...], chunk_parameters: int, index: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, chunk_parameters))
    context = replace(CONTEXT, chunk_parameters=chunk_parameters)
    rows = stream(moduli, context, index).chunk(index, length)
    assert rows.tolist() == by_reference(moduli, context, index, index, length)


@pytest.mark.parametrize("moduli", [(257,), (65_537,), (17, 511), (512, 511), ((1 << 20) - 3, 1 << 20)], ids=str)
@pytest.mark.parametrize("length", [8191, 8192, 8193, 20_003])
def test_a_long_chunk_is_that_of_the_reference(moduli: tuple[int, ...], length: int) -> None:
    context = replace(CONTEXT, chunk_parameters=20_003)
    rows = stream(moduli, context).chunk(3, length)
    assert rows.tolist() == by_reference(moduli, context, 0, 3, length)


@pytest.mark.parametrize("moduli", [*MODULI, (129, 512, 65_537, 17)], ids=str)
@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_lot_of_redraws_that_is_too_small_changes_nothing(
    moduli: tuple[int, ...], share: float, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn ahead is a guess: where it falls short, more is drawn, and every plane is masked once."""
    rooms: list[float] = []
    spare = Stream._spare

    def too_small(self: Stream, index: int, length: int, room: float) -> tuple[Bytes, masks.Moduli]:
        rooms.append(room)
        return spare(self, index, length, share * room)

    monkeypatch.setattr(Stream, "_spare", too_small)
    monkeypatch.setattr(masks, "_MARGIN", 0)
    context = replace(CONTEXT, chunk_parameters=1500)
    layout = Layout(with_moduli(*moduli), 1499, 1500)
    plain = some_residues(moduli, 1499)
    body = layout.pack(plain)
    stream(moduli, context).apply(body, 1, 1499, sign)
    mask = np.array(by_reference(moduli, context, 0, 1, 1499))
    assert stream(moduli, context).chunk(1, 1499).tolist() == mask.tolist()
    rooms = rooms[: len(rooms) // 2]  # each time the same
    assert np.array_equal(layout.residues(body), (plain + sign * mask) % np.array(moduli)[:, None])
    if any(2 * ((1 << reference.width_of(m)) - m) > m // 100 for m in moduli):  # redraws that cannot have sufficed
        assert len(rooms) > 1
    assert rooms == [4.0**k for k in range(len(rooms))]


@pytest.mark.parametrize("margin", [-3, 0, 8])
def test_how_much_is_drawn_ahead_does_not_show(margin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_MARGIN", margin)
    for moduli in ((257,), (65_537,), (17, 129)):
        context = replace(CONTEXT, chunk_parameters=200)
        for seed in range(10):
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
def test_a_shorter_chunk_packs_its_planes_closer(moduli: tuple[int, ...]) -> None:
    """Slices of as many bytes are cut from the stream at the same places; shorter ones are not."""
    full, near, short = (stream(moduli).chunk(7, n) for n in (64, 57, 40))
    assert near.tolist() == full[:, :57].tolist()
    assert short.tolist() == by_reference(moduli, CONTEXT, 0, 7, 40)
    for j, m in enumerate(moduli):
        if j or m > 2:  # the first slice of all begins alike
            assert short[j].tolist() != full[j, :40].tolist()


@pytest.mark.parametrize("moduli", MODULI, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_nothing_is_left_behind_the_last_residue(moduli: tuple[int, ...], sign: int) -> None:
    for length in (*range(1, 18), 63, 64):
        layout = Layout(with_moduli(*moduli), length, 64)
        body = layout.pack(some_residues(moduli, length))
        for seed in range(3):
            stream(moduli, seed=seed).apply(body, 0, length, sign)
            layout.check(0, layout.planes(body.data, 0))  # padding and range


def test_a_mask_is_the_key_stream_where_nothing_is_drawn_again() -> None:
    """With moduli 2^w nothing is changed: one plane begins right behind the other."""
    moduli = (256, 2, 1 << 20)
    keys = derive(seed_of(0).value, CONTEXT.info())
    for index in (0, 1, 2**32):
        expected = reference.keystream(keys[:16], index.to_bytes(12, "big"))
        assert bytes_of(stream(moduli), moduli, index, 64).tolist() == [next(expected) for _ in range(29 * 8)]


def test_streams_in_threads_do_not_meet() -> None:
    context = replace(CONTEXT, chunk_parameters=70_000)
    jobs = [(moduli, n, seed) for seed in range(3) for moduli in ((512, 511), (257,)) for n in (70_000, 69_001)]

    def digest(job: tuple[tuple[int, ...], int, int]) -> bytes:
        moduli, length, seed = job
        mask = stream(moduli, context, seed)
        return sha256(b"".join(bytes_of(mask, moduli, i, length).tobytes() for i in range(3))).digest()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(digest, jobs)) == [digest(job) for job in jobs]


@pytest.mark.parametrize("name", generate.OTHER)
def test_every_field_of_the_context_counts(name: str) -> None:
    ours, theirs = (stream((512, 511), c).chunk(1, 60) for c in (CONTEXT, OTHERS[name]))
    assert np.mean(ours == theirs) < 0.1
    assert commitment(seed_of(0), CONTEXT) != commitment(seed_of(0), OTHERS[name])


def test_a_context_names_no_silo_and_is_unambiguous() -> None:
    infos = {context.info() for context in (CONTEXT, *OTHERS.values())}
    assert len(infos) == 1 + len(OTHERS)
    assert (
        replace(CONTEXT, layer=1, chunk_parameters=11).info() != replace(CONTEXT, layer=11, chunk_parameters=1).info()
    )


def test_no_block_of_the_key_stream_is_used_twice() -> None:
    # With moduli 256 and 65536 nothing is drawn again: the planes are the key stream.
    for moduli in ((256,), (65_536,), (256, 65_536)):
        context = replace(CONTEXT, chunk_parameters=128)
        mask = stream(moduli, context)
        blocks: list[bytes] = []
        for i in range(50):
            raw = bytes_of(mask, moduli, i, 128).tobytes()
            blocks += [raw[at : at + 16] for at in range(0, len(raw), 16)]
        assert len(set(blocks)) == len(blocks) == 50 * sum(map(reference.width_of, moduli))


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
        stream((512, 511)).apply(np.zeros(18 * 9, np.uint8), 0, length)


@pytest.mark.parametrize("size", [0, 143, 145, 162])
def test_a_mask_fits_where_it_is_added(size: int) -> None:
    planes = np.zeros(size, np.uint8)
    with pytest.raises(ValueError, match=f"are 144 bytes, not {size}"):
        stream((512, 511)).apply(planes, 0, 64)
    assert not planes.any()


def test_a_stream_takes_material_of_one_length() -> None:
    for size in (0, 16, 31, 33):
        with pytest.raises(ValueError, match="32 bytes"):
            Stream(bytes(size), (512, 511), 64)


# Masking and taking off.


def some_residues(moduli: tuple[int, ...], n: int) -> Residues:
    rng = np.random.default_rng(1)
    return np.array([rng.integers(0, m, n) for m in moduli], residue.plan_dtype(with_moduli(*moduli)))


@pytest.mark.parametrize("moduli", MODULI, ids=str)
def test_a_mask_that_is_added_and_removed_leaves_nothing(moduli: tuple[int, ...]) -> None:
    layout = Layout(with_moduli(*moduli), 150, 64)
    plain = layout.pack(some_residues(moduli, 150))
    masked = plain.copy()
    for i in (1, 2):
        stream(moduli).apply(layout.part(masked, i), i, layout.length(i))
    assert layout.part(masked, 0).tobytes() == layout.part(plain, 0).tobytes()
    for row, before, m in zip(layout.residues(masked), layout.residues(plain), moduli, strict=True):
        assert (row < m).all()
        assert (row[64:] != before[64:]).any()
    for i in (2, 1):
        stream(moduli).apply(layout.part(masked, i), i, layout.length(i), -1)
    assert masked.tobytes() == plain.tobytes()


@pytest.mark.parametrize("moduli", MODULI, ids=str)
def test_a_mask_is_added_modulo_each_plane(moduli: tuple[int, ...]) -> None:
    layout, plain = Layout(with_moduli(*moduli), 61, 64), some_residues(moduli, 61)
    mask = np.array(by_reference(moduli, CONTEXT, 0, 5, 61))
    for sign in (1, -1):
        body = layout.pack(plain)
        stream(moduli).apply(body, 5, 61, sign)
        expected = (plain.astype(np.int64) + sign * mask) % np.array(moduli)[:, None]
        assert layout.residues(body).tolist() == expected.tolist()


PLANS = {
    "counts": plan(10, 4),
    "malicious": plan(10, 4, level=Level.MALICIOUS),
    "unary": plan(10, 4, Encoding.UNARY),
    "mixed widths": plan(10, 8),
    "weights": plan(10, 4, weight_levels=100),
}
SCHEMA = Schema((TensorSpec("a", (5, 7)), TensorSpec("b", (120,))))


def layers(hops: int, manifest: bytes = b"m" * 32) -> list[MaskContext]:
    """The aggregator's context and one for each hop."""
    assert AGGREGATOR == 0
    return [MaskContext(manifest, layer, 64) for layer in range(hops + 1)]


def apply(body: Bytes, layout: Layout, silo: int, context: MaskContext, sign: int) -> None:
    mask = mask_stream(seed_of((silo, context.layer)), context, layout.plan.moduli)
    for i in range(layout.chunks):
        mask.apply(layout.part(body, i), i, layout.length(i), sign)


def add(total: Bytes, body: Bytes, layout: Layout) -> None:
    for i in range(layout.chunks):
        layout.add(total, i, layout.planes(layout.part(body, i).data, i))


def run(p: Plan, hops: int, manifests: list[bytes]) -> tuple[Residues, list[Residues], Residues]:
    """Mask one body for each silo, add them up and let each layer take its masks off, as if all had seen manifests[0].

    Returns the plain sum, what each layer saw, and what remains.
    """
    codec = Codec(SCHEMA, (1.0, 1.0), p, 64)
    layout = codec.layout
    plain, total = layout.body(), layout.body()
    for silo, manifest in enumerate(manifests):
        rng = np.random.default_rng(silo)
        tensors = {t.name: rng.uniform(-1, 1, t.shape).astype(np.float32) for t in SCHEMA.tensors}
        own = layout.body()
        for _ in codec.encode(tensors, weight=min(silo + 1, p.weight_levels), body=own):
            pass
        add(plain, own, layout)
        for context in layers(hops, manifest):
            apply(own, layout, silo, context, 1)
        add(total, own, layout)
    seen: list[Residues] = []
    first, *rest = layers(hops, manifests[0])
    for context in (*rest, first):  # the hops in their order, the aggregator last
        seen.append(layout.residues(total))
        for silo in range(len(manifests)):
            apply(total, layout, silo, context, -1)
    return layout.residues(plain), seen, layout.residues(total)


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
def test_silos_that_were_shown_different_manifests_do_not_cancel(p: Plan) -> None:
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


@pytest.mark.parametrize("point", generate.SMALL_ORDER, ids=bytes.hex)
def test_points_of_small_order_are_known_in_every_encoding(point: bytes) -> None:
    assert small_order(point)
    with pytest.raises(ValueError, match=r".*"):  # the library agrees: the shared secret would be zero
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(point))
    with pytest.raises(PeerFault) as fault:
        seal(seed_of("seed"), point, CONTEXT)
    assert fault.value.reason is Reason.WRONG_KEYS


def test_no_other_key_is_taken_for_one_of_small_order() -> None:
    for i in range(100):
        assert not small_order(public_key(seed_of(i)))
    assert len(masks._SMALL_ORDER) == len(generate.SMALL_ORDER) / 2


# Secrets.


def test_a_secret_that_is_wiped_is_gone_wherever_it_is_shared() -> None:
    secret = Secret.draw(Random(1).randbytes)
    before, shared, copied = bytes(bytearray(secret.value)), secret.value, bytearray(secret.value)
    secret.wipe()
    assert secret.value == bytes(32)
    assert shared == bytes(32)
    assert bytes(copied) == before
    assert any(before)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_nothing_that_masks_are_made_with_stays_in_memory_nor_a_mask() -> None:
    """Whoever seizes a hop later would take the masks off with it: the memory of a process is searched."""
    with subprocess.Popen(
        [sys.executable, "-c", _KEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        wanted: dict[str, bytes] = {}
        info = MaskContext(bytes(32), 1, 4096).info()
        for number, line in enumerate(keeper.stdout.readline().split()):
            material = derive(bytes(byte ^ 0xFF for byte in bytes.fromhex(line)), info)
            drawn = Stream(material, (262139,), 4096).packed(0, 4096)[4096:4160].tobytes()
            wanted |= {f"material {number}": material, f"key {number}": material[:16], f"mask {number}": drawn}
        assert len(wanted) == 9
        assert in_memory(keeper.pid, wanted) == dict.fromkeys(wanted, 0)
        keeper.stdin.close()
    assert keeper.returncode == 0


_KEEPER = """
import os, sys
import numpy as np
from silomix.runtime.core.numbers.masks import MaskContext, Secret, expanding

seeds = [Secret(os.urandom(32)) for _ in range(3)]
body = np.zeros(18 * 512, np.uint8)
told = " ".join(bytes(byte ^ 0xFF for byte in seed.value).hex() for seed in seeds)
with expanding([(seed, MaskContext(bytes(32), 1, 4096)) for seed in seeds], (262139,)) as streams:
    for stream in streams:
        stream.apply(body, 0, 4096)
for seed in seeds:
    seed.wipe()
del stream, streams
print(told, flush=True)
sys.stdin.read()
"""


def test_a_stream_that_was_wiped_masks_nothing_without_saying_so() -> None:
    """Nor one that is wiped while another thread expands it: part of what that makes is covered by zeros."""
    stream = mask_stream(seed_of("wiped"), CONTEXT, (521,))
    planes = np.zeros(10 * 8, np.uint8)
    stream.apply(planes, 0, 64)
    assert planes.any()

    class Meanwhile:
        def encrypt_into(self, *_: object) -> None:
            stream.wipe()

    stream._main = Meanwhile()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(Overwritten):
            stream.apply(planes, 0, 64)


def test_no_key_is_derived_from_what_was_overwritten() -> None:
    """Anybody can expand zeros: what they cover lies open."""
    secret = Secret.draw(Random(1).randbytes)
    copied = secret.copy()
    assert secret.keyed() == copied.keyed() == secret.value
    secret.wipe()
    for use in (secret.keyed, lambda: mask_stream(secret, CONTEXT, (256,))):
        with pytest.raises(Overwritten):
            use()
    assert mask_stream(copied, CONTEXT, (256,)).chunk(0, 8).any()


def test_a_seed_of_zeros_is_refused_as_if_it_did_not_open() -> None:
    """Else a silo could have an attempt fail that nobody is to blame for."""
    key = seed_of("key")
    assert unseal(seal(seed_of("seed"), public_key(key), CONTEXT), key, CONTEXT) == seed_of("seed")
    with pytest.raises(PeerFault) as caught:
        unseal(seal(Secret(bytes(32)), public_key(key), CONTEXT), key, CONTEXT)
    assert caught.value.reason is Reason.SEAL_BROKEN


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
