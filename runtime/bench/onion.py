"""What the paper's literal MixNet costs beside ours: every bit of every residue in an onion of its own.

A sample of bits is wrapped in three real layers of HPKE and peeled at three hops, one by one, as Alg. "Shuffling with
MixNet" has it; shuffling and proofs are left out. Beside it, the same number of hops of ours: encode, mask, add up and
unmask a vector. The two are timed in turn, in one thread.
"""

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import MaskContext, Secret, mask_streams
from silomix.runtime.core.numbers.plan import Encoding, plan
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.terminal import console, print_table, say_json

REPEATS = 5
SAMPLE_BITS = 200
SAMPLE_PARAMETERS = 1 << 20
LAYER_BYTES = 48
"""What one layer adds: a 32-byte encapsulated key and a 16-byte tag."""
RESNET18 = 11_237_432
DAY_S = 86_400

Figures = dict[str, float]

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


def bit_bytes(hops: int) -> int:
    """Length of the onion of one bit, as a silo sends it: the bit in a byte, and a layer for each hop."""
    return 1 + hops * LAYER_BYTES


def wrap(message: bytes, keys: Sequence[X25519PublicKey]) -> bytes:
    """Put a layer for each hop round a message, the last hop's innermost."""
    for key in reversed(keys):
        message = _SUITE.encrypt(message, key)
    return message


def peel(onion: bytes, key: X25519PrivateKey) -> bytes:
    """Take one layer off."""
    return _SUITE.decrypt(onion, key)


def onion(silos: int, hops: int, precision: int, as_json: bool) -> int:
    """Time onions and ours, and print bytes and time for a bit, a parameter and a whole model."""
    keys = [X25519PrivateKey.generate() for _ in range(hops)]
    unary = plan(silos, precision, Encoding.UNARY)
    bits = unary.bits_per_parameter
    ours = _Ours(silos, hops, precision)
    ours.run()  # compiles
    laps = [(_onions(keys), ours.run()) for _ in range(REPEATS)]
    wrapped, peeled, sizes = (median(lap[0][i] for lap in laps) for i in range(3))
    silo, hop = (median(lap[1][i] for lap in laps) for i in range(2))
    theirs: Figures = {
        "bytes_per_bit": sizes,
        "silo_s_per_bit": wrapped,
        "hop_s_per_bit": peeled,
        "bits_per_parameter": bits,
        "wire_bits_per_parameter": 8 * sizes * bits,
        "silo_s_per_parameter": wrapped * bits,
        "hop_s_per_parameter": peeled * bits * silos,
    }
    own: Figures = {
        "wire_bits_per_parameter": ours.wire_bits,
        "silo_s_per_parameter": silo,
        "hop_s_per_parameter": hop,
    }
    ratios = {name: theirs[name] / own[name] for name in own}
    policy = {"silos": silos, "hops": hops, "precision": precision}
    if as_json:
        say_json({**policy, "repeats": REPEATS, "onion": theirs, "ours": own, "ratios": ratios})
    else:
        _show(f"{silos} silos, {hops} hops, r = {precision}, one thread", theirs, own)
    return 0


def _onions(keys: Sequence[X25519PrivateKey]) -> tuple[float, float, float]:
    """Return the seconds to wrap a bit, the seconds to peel one layer, and the bytes that a silo sends for it."""
    public = [key.public_key() for key in keys]
    start = time.process_time()
    onions = [wrap(bytes([i & 1]), public) for i in range(SAMPLE_BITS)]
    wrapped = time.process_time() - start
    size = sum(map(len, onions)) / SAMPLE_BITS
    start = time.process_time()
    for key in keys:
        onions = [peel(one, key) for one in onions]
    peeled = time.process_time() - start
    if [one[0] for one in onions] != [i & 1 for i in range(SAMPLE_BITS)]:
        raise AssertionError("the onions did not hold what was put in: the times mean nothing")
    return wrapped / SAMPLE_BITS, peeled / SAMPLE_BITS / len(keys), size


class _Ours:
    """What a silo and a hop do with a vector in our protocol, without network and disk."""

    def __init__(self, silos: int, hops: int, precision: int) -> None:
        self._plan, self._silos = plan(silos, precision), silos
        self._codec = Codec(Schema((TensorSpec("vector", (SAMPLE_PARAMETERS,)),)), (1.0,), self._plan)
        drawn = np.random.default_rng(20260101)
        self._values = drawn.uniform(-1, 1, SAMPLE_PARAMETERS).astype(np.float32)
        contexts = [MaskContext(bytes(32), layer, self._codec.chunk_parameters) for layer in range(hops + 1)]
        self._streams = mask_streams([(Secret(drawn.bytes(32)), c) for c in contexts], self._plan.moduli)
        self.wire_bits = 8 * self._codec.layout.body_bytes / SAMPLE_PARAMETERS

    def run(self) -> tuple[float, float]:
        """Return processor seconds per parameter of a silo, and of hop 1 for the bodies of all silos."""
        layout = self._codec.layout
        start = time.process_time()
        body = layout.body()
        for i, planes in enumerate(self._codec.encode({"vector": self._values})):
            layout.add(body, i, planes)
            for stream in self._streams:
                stream.apply(layout.part(body, i), i, layout.length(i))
        silo = time.process_time() - start
        start = time.process_time()
        total = layout.body()
        for _ in range(self._silos):
            layout.add_body(total, body)
            for i in range(layout.chunks):
                self._streams[1].apply(layout.part(total, i), i, layout.length(i), -1)
        hop = time.process_time() - start
        return silo / SAMPLE_PARAMETERS, hop / SAMPLE_PARAMETERS


def _show(title: str, theirs: Figures, ours: Figures) -> None:
    def row(what: str, name: str, unit: float, form: str) -> tuple[str, ...]:
        a, b = theirs[name] * unit, ours[name] * unit
        return what, f"{a:{form}}", f"{b:{form}}", f"{a / b:,.0f}"

    out = console()
    print_table(
        out,
        title,
        {"": "", "onions": "right", "ours": "right", "ratio": "right"},
        [
            row("bits that a silo sends per parameter", "wire_bits_per_parameter", 1, ",.2f"),
            row("microseconds of a silo per parameter", "silo_s_per_parameter", 1e6, ",.4f"),
            row("microseconds of hop 1 per parameter, all silos", "hop_s_per_parameter", 1e6, ",.4f"),
        ],
    )
    out.print(
        f"One bit is {theirs['bytes_per_bit']:.0f} bytes, {theirs['silo_s_per_bit'] * 1e6:,.0f} microseconds to wrap "
        f"and {theirs['hop_s_per_bit'] * 1e6:,.0f} to peel at each hop; a parameter has "
        f"{theirs['bits_per_parameter']:.0f} bits in unary.",
        soft_wrap=True,
    )
    out.print(
        f"ResNet-18 by this measure: {theirs['wire_bits_per_parameter'] * RESNET18 / 8e9:,.0f} GB and "
        f"{theirs['silo_s_per_parameter'] * RESNET18 / DAY_S:,.1f} days of one core for each silo and round; ours "
        f"{ours['wire_bits_per_parameter'] * RESNET18 / 8e6:,.0f} MB and "
        f"{ours['silo_s_per_parameter'] * RESNET18:,.2f} seconds. Shuffling and proofs are not in it.",
        soft_wrap=True,
    )
