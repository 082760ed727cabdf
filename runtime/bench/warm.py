"""Compiling every kernel ahead of time, so that a node starts at once."""

import os
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing import get_context

import numpy as np

from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.fold import Fold
from silomix.runtime.core.numbers.kernels import kept
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import Stream
from silomix.runtime.core.numbers.plan import Encoding, Level, plan
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.numbers.slices import redraw
from silomix.runtime.terminal import console, say_json

PLANS = (
    plan(10, 4),
    plan(10, 7),
    plan(10, 8),
    plan(10, 14),
    plan(1000, 16),
    plan(1100, 6),
    plan(10, 4, Encoding.FIRST_PRIMES),
)
"""Residues of 16 and of 32 bits, values of 32 and of 64 bits, two moduli and many, sums of one word and of two."""


def warm(as_json: bool) -> int:
    """Compile every kernel and keep the machine code, so that a node starts at once."""
    start = time.perf_counter()
    if not kept(redraw):
        with suppress(OSError, BrokenExecutor), ProcessPoolExecutor(2, get_context("spawn")) as both:
            wait([both.submit(warm_values), both.submit(warm_planes)])
    warm_kernels()  # finds what the two have kept, and makes what is missing
    result = {"seconds": time.perf_counter() - start, "cache": os.environ.get("NUMBA_CACHE_DIR", "beside the source")}
    if as_json:
        say_json(result)
    else:
        console().print(f"kernels ready after {result['seconds']:.1f} s; machine code is kept {result['cache']}")
    return 0


def warm_kernels() -> None:
    """Call every kernel once with each type of array that nodes use."""
    warm_values()
    warm_planes()
    for p in PLANS:
        codec = Codec(Schema((TensorSpec("values", (300,)),)), (1.0,), p)
        body = codec.layout.body()
        for _ in codec.encode({"values": np.linspace(-1, 1, 300, dtype=np.float32)}, body=body):
            codec.decode(body, 2)


def warm_values() -> None:
    """Compile what turns values into residues, and sums of residues into values."""
    for p in PLANS:
        for kind in (np.float32, np.float64):
            values: residue.Floats = np.linspace(-1, 1, 300).astype(kind)
            acc, _ = residue.encode(values, 1.0, p)
            values.flags.writeable = False
            residue.encode(values, 1.0, p)
            residue.decode_mean(acc, p, 1.0, 1, out=np.empty_like(values))
            residue.decode_sum(acc, p)


def warm_planes() -> None:
    """Compile what works on packed planes."""
    for p in PLANS:
        layout = Layout(p, 300, 304)
        body = layout.body()
        layout.put(layout.part(body, 0), layout.buffer(300))
        planes = layout.planes(body.copy().data, 0)
        for form in (planes, [bytes(plane) for plane in planes]):  # from a file, and from a message
            layout.add(body, 0, form)
            layout.unpack(0, form)
        for sign in (1, -1):
            Stream(bytes(32), p.moduli, 304).apply(body, 0, 300, sign)
    for p in (plan(10, 4, level=Level.MALICIOUS), plan(10, 8, level=Level.MALICIOUS)):  # narrow residues, and wide ones
        Fold(bytes(32), p, 300, 300).update_mask(0, Stream(bytes(32), p.moduli, 300))
