"""Compiling every kernel ahead of time, so that a node starts at once."""

import os
import time

import numpy as np

from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.fold import Fold
from silomix.runtime.core.numbers.masks import Stream
from silomix.runtime.core.numbers.plan import Encoding, Level, plan
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.terminal import console, say_json


def warm(as_json: bool) -> int:
    """Compile every kernel and keep the machine code, so that a node starts at once."""
    start = time.perf_counter()
    warm_kernels()
    result = {"seconds": time.perf_counter() - start, "cache": os.environ.get("NUMBA_CACHE_DIR", "beside the source")}
    if as_json:
        say_json(result)
    else:
        console().print(f"kernels ready after {result['seconds']:.1f} s; machine code is kept {result['cache']}")
    return 0


def warm_kernels() -> None:
    """Call every kernel once with each type of array that nodes use."""
    for p in (
        plan(10, 4),
        plan(10, 7),
        plan(10, 8),
        plan(10, 14),
        plan(1000, 16),
        plan(1100, 6),
        plan(10, 4, Encoding.FIRST_PRIMES),
    ):  # residues of 16 and of 32 bits, values of 32 and of 64 bits, two moduli and many, sums of one word and of two
        for kind in (np.float32, np.float64):
            values: residue.Floats = np.linspace(-1, 1, 300).astype(kind)
            acc, _ = residue.encode(values, 1.0, p)
            values.flags.writeable = False
            residue.encode(values, 1.0, p)
            residue.decode_mean(acc, p, 1.0, 1, out=np.empty_like(values))
        schema = Schema((TensorSpec("values", (300,)),))
        single = Codec(schema, (1.0,), p)
        for i, planes in enumerate(single.encode({"values": np.linspace(-1, 1, 300, dtype=np.float32)})):
            body = single.layout.body()
            for form in (planes, [bytes(plane) for plane in planes]):  # from a file, and from a message
                single.layout.add(body, i, form)
                residue.decode_sum(single.layout.unpack(i, form), p)
            for sign in (1, -1):
                Stream(bytes(32), p.moduli, 304).apply(body, 0, 300, sign)
            single.decode(body, 2)
    for p in (plan(10, 4, level=Level.MALICIOUS), plan(10, 8, level=Level.MALICIOUS)):  # narrow residues, and wide ones
        Fold(bytes(32), p, 300, 300).update_mask(0, Stream(bytes(32), p.moduli, 300))
