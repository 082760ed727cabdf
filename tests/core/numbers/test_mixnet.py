"""The paper's MixNet against our sums: the same result, at a price; and what its verification finds."""

from random import Random

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tests.core.numbers import mixnet, oracle
from tests.core.numbers.mixnet import Abort, Vector, mix, wrap

from silomix.runtime.bench.onion import bit_bytes, peel
from silomix.runtime.bench.onion import wrap as bench_wrap
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.plan import Encoding, plan

KEYS = [X25519PrivateKey.from_private_bytes(bytes([i + 1] * 32)) for i in range(3)]
PUBLIC = [key.public_key() for key in KEYS]
BITS = [bytes([bit]) for bit in (1, 1, 0, 1, 0, 0, 0, 1)]


def onions(messages: Vector = BITS) -> Vector:
    return [wrap(message, PUBLIC) for message in messages]


def test_bits_come_out_as_they_went_in_but_in_another_order() -> None:
    messages = [bytes([i]) for i in range(20)]
    out = mix(onions(messages), KEYS, Random(1))
    assert sorted(out) == messages
    assert out != messages


def test_an_onion_of_a_bit_has_145_bytes_at_three_hops() -> None:
    assert {len(onion) for onion in onions()} == {1 + 3 * mixnet.LAYER_BYTES} == {145} == {bit_bytes(3)}


def test_no_server_but_the_last_sees_a_bit() -> None:
    """Before its turn an onion opens to nobody else, and after it there is another onion inside."""
    (onion,) = onions([b"\x01"])
    for key, size in zip(KEYS, (97, 49, 1), strict=True):
        for other in KEYS:
            if other is not key:
                with pytest.raises(InvalidTag):
                    mixnet.onion_dec(onion, other)
        onion = mixnet.onion_dec(onion, key)
        assert len(onion) == size


def test_alg_1_over_onions_gives_our_sum() -> None:
    """Every bit of every residue of every silo in an onion of its own, mixed for each parameter and residue."""
    chosen = plan(3, 1, Encoding.UNARY)
    values = np.array([[0.4, -0.9], [-0.2, -0.9], [0.9, 0.1]], np.float32)
    encoded = [residue.encode(row, 1.0, chosen)[0] for row in values]
    integers = [[oracle.round_clip(float(p), 1.0, chosen.v)[0] for p in row] for row in values]
    for parameter in range(2):
        sums = []
        for plane, m in enumerate(chosen.moduli):
            bits = [b for row in encoded for b in oracle.unary(int(row[plane, parameter]), m)]
            out = mix(onions([bytes([b]) for b in bits]), KEYS, Random(plane))
            sums.append(sum(bit[0] for bit in out))
        assert oracle.crt(sums, chosen.moduli) == sum(row[parameter] for row in integers)


@pytest.mark.parametrize("server", [1, 2, 3])
@pytest.mark.parametrize("what", ["replaced", "dropped", "doubled"])
def test_whoever_alters_the_vector_is_caught_by_the_next(server: int, what: str) -> None:
    def forge(j: int, vector: Vector) -> Vector:
        if j != server:
            return vector
        new = b"\x01" if server == 3 else wrap(b"\x01", PUBLIC[server:])
        return {"replaced": [new, *vector[1:]], "dropped": vector[1:], "doubled": [*vector, vector[0]]}[what]

    with pytest.raises(Abort) as rejected:
        mix(onions(), KEYS, Random(2), forge=forge)
    assert rejected.value.server == server + 1


def test_a_server_that_does_not_shuffle_is_not_caught() -> None:
    """As the paper says: that a permutation is random cannot be proved."""
    order: list[Vector] = []

    def forge(j: int, vector: Vector) -> Vector:
        order.append(sorted(vector))
        return order[-1]

    assert sorted(mix(onions(), KEYS, Random(3), forge=forge)) == sorted(BITS)


def test_as_printed_every_honest_run_is_rejected() -> None:
    """Alg. "MixVerify" decrypts, and then holds the proof against the decrypted vector, of which it says nothing."""
    with pytest.raises(Abort) as rejected:
        mix(onions(), KEYS, Random(4), printed=True)
    assert rejected.value.server == 2


def test_the_onions_that_are_timed_are_these() -> None:
    onion = bench_wrap(b"\x01", PUBLIC)
    for key in KEYS[:2]:
        onion = peel(onion, key)
    assert mixnet.onion_dec(onion, KEYS[2]) == b"\x01"
