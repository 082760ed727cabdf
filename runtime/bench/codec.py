"""Measurements: ratios taken side by side in one run, because machines differ and are noisy.

`codec` times every step that the protocol adds to a round on one thread, against the copy of the same float32 vector in
memory, and against the loop over parameters that one would write first.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import MaskContext, Secret, Stream, mask_stream
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Plan, plan
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.terminal import console, say_json

REPEATS = 9
PYTHON_SLICE = 20_000
PAPER_SECONDS = {"encode": 19.1, "decode": 57.0}
"""The paper's computation table for ResNet-18, on its authors' laptop."""


@dataclass(frozen=True)
class Step:
    """One thing that is timed: its key in the JSON, what it does, and how to do it once."""

    key: str
    what: str
    run: Callable[[], object]


def codec(parameters: int, silos: int, precision: int, as_json: bool) -> int:
    """Time the codec and the masks against memcpy and against plain Python; print ratios."""
    p = plan(silos, precision)
    model = Codec(Schema((TensorSpec("vector", (parameters,)),)), (1.0,), p)
    rng = np.random.default_rng(20260101)
    values = rng.uniform(-1, 1, parameters).astype(np.float32)
    copy = np.empty_like(values)
    body = [tuple(bytes(plane) for plane in planes) for planes in model.encode({"vector": values})]
    acc = model.layout.body()
    stream = mask_stream(Secret(bytes(range(32))), _context(p, model), p.moduli)
    steps = [
        Step("memcpy", "copy the float32 vector", lambda: np.copyto(copy, values)),
        Step("encode", "quantise, reduce, pack", lambda: _encode(model, values)),
        Step("expand", "expand one hop's mask and add it", lambda: _masks(model, stream, acc, 1)),
        Step("unmask", "expand one hop's mask and take it off", lambda: _masks(model, stream, acc, -1)),
        Step("add", "check one silo's planes and add them", lambda: _add(model, acc, body)),
        Step("decode", "unpack, remainder theorem, mean", lambda: _decode(model, body, copy)),
    ]
    seconds = _race(steps, quiet=as_json)
    python = {
        "encode": _scaled(lambda n: _python_encode(values[:n], p), parameters),
        "decode": _scaled(lambda n: _python_decode(body[0], p, n), parameters),
    }
    result: dict[str, object] = {
        "parameters": parameters,
        "silos": silos,
        "precision": precision,
        "moduli": list(p.moduli),
        "bits_per_parameter": p.packed_bits,
        "threads": 1,
        "repeats": REPEATS,
        "python_slice": min(PYTHON_SLICE, parameters),
        "seconds": {**seconds, "python_encode": python["encode"], "python_decode": python["decode"]},
        **{f"{s.key}_vs_memcpy": seconds[s.key] / seconds["memcpy"] for s in steps if s.key != "memcpy"},
        "encode_speedup_vs_python": python["encode"] / seconds["encode"],
        "decode_speedup_vs_python": python["decode"] / seconds["decode"],
    }
    if as_json:
        say_json(result)
    else:
        _print_codec(result, steps, seconds, python)
    return 0


def _context(p: Plan, model: Codec) -> MaskContext:
    return MaskContext(bytes(32), 1, model.chunk_parameters)


def _encode(model: Codec, values: npt.NDArray[np.float32]) -> None:
    for _ in model.encode({"vector": values}):
        pass


def _masks(model: Codec, stream: Stream, acc: Bytes, sign: int) -> None:
    layout = model.layout
    for i in range(layout.chunks):
        stream.apply(layout.part(acc, i), i, layout.length(i), sign)


def _add(model: Codec, acc: Bytes, body: list[tuple[bytes, ...]]) -> None:
    for i, planes in enumerate(body):
        model.layout.add(acc, i, planes)


def _decode(model: Codec, body: list[tuple[bytes, ...]], out: npt.NDArray[np.float32]) -> None:
    buffer = model.layout.buffer()
    for i, planes in enumerate(body):
        start, n = model.layout.start(i), model.layout.length(i)
        model.layout.unpack(i, planes, buffer)
        residue.decode_mean(buffer, model.plan, 1.0, 1, out=out[start : start + n])


def _race(steps: list[Step], *, quiet: bool) -> dict[str, float]:
    """Time the steps in turn, several times over, and keep each one's median: noise then hits all of them alike."""
    times: dict[str, list[float]] = {s.key: [] for s in steps}
    out = console(stderr=True, quiet=quiet or not sys.stderr.isatty())
    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=out, transient=True)
    with bar:
        task = bar.add_task("timing", total=(REPEATS + 1) * len(steps))
        for lap in range(REPEATS + 1):
            for step in steps:
                bar.update(task, description=step.what)
                start = time.perf_counter()
                step.run()
                if lap:  # the first lap compiles the kernels and touches the memory
                    times[step.key].append(time.perf_counter() - start)
                bar.advance(task)
    return {key: float(np.median(laps)) for key, laps in times.items()}


def _scaled(run: Callable[[int], object], parameters: int) -> float:
    """Time a loop over a slice, and scale it to the whole vector."""
    n = min(PYTHON_SLICE, parameters)
    start = time.perf_counter()
    run(n)
    return (time.perf_counter() - start) * parameters / n


def _python_encode(values: npt.NDArray[np.float32], p: Plan) -> list[bytearray]:
    """Do what `encode` does, as one would first write it: a loop, a modulo, bits set one by one."""
    size = (len(values) + 7) // 8
    planes = [bytearray(width * size) for width in p.widths]
    for i, value in enumerate(values.tolist()):
        x = max(-p.v, min(p.v, round(value * p.v)))
        for plane, m, width in zip(planes, p.moduli, p.widths, strict=True):
            for b in range(width):
                plane[b * size + (i >> 3)] |= (x % m >> b & 1) << (i & 7)
    return planes


def _python_decode(planes: tuple[bytes, ...], p: Plan, n: int) -> list[float]:
    """Do what `decode` does, as one would first write it."""
    terms = [(p.M // m, pow(p.M // m, -1, m)) for m in p.moduli]
    means = []
    for i in range(n):
        x = 0
        for plane, width, (cofactor, y) in zip(planes, p.widths, terms, strict=True):
            size = len(plane) // width
            r = sum((plane[b * size + (i >> 3)] >> (i & 7) & 1) << b for b in range(width))
            x += r * cofactor * y
        x %= p.M
        means.append((x - p.M if x > (p.M - 1) // 2 else x) / p.v)
    return means


def _print_codec(
    result: dict[str, object], steps: list[Step], seconds: dict[str, float], python: dict[str, float]
) -> None:
    out = console()
    table = Table(title=f"{result['parameters']:,} parameters, {result['bits_per_parameter']} bits each, one thread")
    for column in ("step", "ms", "x memcpy", "GB/s of float32"):
        table.add_column(column, justify="left" if column == "step" else "right")
    size = int(str(result["parameters"])) * 4
    for step in steps:
        t = seconds[step.key]
        ratio = t / seconds["memcpy"]
        table.add_row(step.what, f"{t * 1e3:.1f}", f"{ratio:.2f}", f"{size / t / 1e9:.2f}")
    for key, t in python.items():
        name = f"{key} by a loop in Python (on {result['python_slice']:,}, scaled)"
        table.add_row(name, f"{t * 1e3:,.0f}", f"{t / seconds['memcpy']:,.0f}", "")
    out.print(table)
    for key, paper in PAPER_SECONDS.items():
        out.print(
            f"{key}: {python[key] / seconds[key]:,.0f} x the loop in Python"
            + (f" (the paper reports {paper} s for this size)" if result["parameters"] == 11_237_432 else "")
        )
