"""What the tamper check adds to a round: processor time by role, time on this machine's cores, and bytes; and a trap's.

Real rounds at levels semi-honest and malicious are run in turn, in separate processes (`round.py`). Before and after
them, the passes that the check takes are made over a vector of the same length by one party of each role on one thread.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from silomix.runtime.bench.round import Bench
from silomix.runtime.core.numbers import traps
from silomix.runtime.core.numbers.check_costs import check_cost, trap_cost
from silomix.runtime.core.numbers.fold import Fold
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import MaskContext, Secret, Stream, mask_stream
from silomix.runtime.core.numbers.plan import Level, chunk_for, plan
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.terminal import console, print_table, say_json

REPEATS = 3
"""Laps of the passes before the round, and as many after it."""
SAMPLE_TRAPS = 3

Figures = dict[str, float]


class _Round(Bench):
    """The round without the check and with it, and no arm of one hop less."""

    @property
    def protected(self) -> dict[str, int]:
        """Two arms."""
        return {"protected": self.hops, "checked": self.hops}

    def level(self, arm: str) -> Level:
        """One at each level."""
        return Level.MALICIOUS if arm == "checked" else Level.SEMI_HONEST


class Passes:
    """The passes over vectors that the check takes of each role."""

    def __init__(self, silos: int, parameters: int, hops: int, precision: int) -> None:
        """Draw a coin and one vector that stands for all."""
        self.silos, self.hops = silos, hops
        self.plan = plan(silos, precision, level=Level.MALICIOUS)
        self.layout = Layout(self.plan, parameters, chunk_for(silos))
        self.coin = os.urandom(32)
        self.body = self.layout.body()
        stream = self._stream(self.plan.moduli)
        for i in range(self.layout.chunks):
            stream.apply(self.layout.part(self.body, i), i, self.layout.length(i))

    def _stream(self, moduli: tuple[int, ...]) -> Stream:
        context = MaskContext(bytes(32), 1, self.layout.chunk_parameters)
        return mask_stream(Secret(os.urandom(32)), context, moduli)

    def fold(self, vectors: int, masks: int) -> None:
        """Fold so many vectors that are there and so many masks, in step."""
        first = Fold(self.coin, self.plan, self.layout.coordinates, self.layout.chunk_parameters)
        folds = [first, *(first.sibling() for _ in range(vectors + masks - 1))]
        streams = [self._stream(self.plan.moduli) for _ in range(masks)]
        for i in range(self.layout.value_chunks):
            for fold in folds[:vectors]:
                fold.update_packed(i, self.layout.part(self.body, i))
            for fold, stream in zip(folds[vectors:], streams, strict=True):
                fold.update_mask(i, stream)
        zero = tuple((0,) * n for n in check_cost(self.plan, self.hops).rhos)
        for fold in folds:
            fold.finish(zero)

    def silo(self) -> None:
        """What it sent, which it masks again, and its mask for each hop."""
        self.masks(self.plan.moduli)
        self.fold(1, self.hops)

    def hop(self) -> None:
        """What came in, what went out, and its pad."""
        self.fold(2, 1)

    def aggregator(self) -> None:
        """What reached it."""
        self.fold(1, 0)

    def pads(self) -> None:
        """Everybody, when the pads are out: fold the sum without them, which is there already."""
        self.fold(1, 0)

    def masks(self, moduli: tuple[int, ...]) -> None:
        """Expand one mask and add it."""
        stream, body = self._stream(moduli), self.layout.body()
        for i in range(self.layout.chunks):
            stream.apply(self.layout.part(body, i), i, self.layout.length(i))


def bench_check(silos: int, parameters: int, hops: int, precision: int, repeats: int, as_json: bool) -> int:
    """Measure the check beside a round, and print it."""
    interrupt_on_sigterm()
    progress = console(stderr=True, quiet=as_json or not sys.stderr.isatty())
    with progress.status("compiling"):
        passes = Passes(silos, parameters, hops, precision)
        passes.fold(1, 1)
    with progress.status("timing the check"):
        before = [_lap(passes) for _ in range(REPEATS)]
    bench = _Round(silos, parameters, hops, precision)
    round_ = asyncio.run(_run(bench, repeats, progress))
    with progress.status("timing the check again, and traps"):
        laps = [*before, *(_lap(passes) for _ in range(REPEATS))]
        trap = _traps(passes)
    check = {name: median(lap[name] for lap in laps) for name in laps[0]}
    result = _result(passes, round_, check, trap)
    if as_json:
        say_json(result)
    else:
        _show(result)
    return 0


async def _run(bench: Bench, repeats: int, progress: Any) -> dict[str, Any]:
    try:
        return await bench.run(repeats, progress)
    finally:
        await bench.close()


def _lap(passes: Passes) -> Figures:
    semi_honest = plan(passes.silos, passes.plan.precision).moduli
    return {
        "silo_s": _cpu(passes.silo),
        "hop_s": _cpu(passes.hop),
        "aggregator_s": _cpu(passes.aggregator),
        "pads_s": _cpu(passes.pads),
        "mask_s": _cpu(lambda: passes.masks(passes.plan.moduli)),
        "mask_semi_honest_s": _cpu(lambda: passes.masks(semi_honest)),
    }


def _cpu(run: Callable[[], None]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def _traps(passes: Passes) -> Figures:
    """Time one trap in all planes: processor seconds of a silo and of a verifier for all hops, of a hop for itself."""
    drawn = np.random.default_rng(1)
    silo = hop = verifier = 0.0
    for trap in range(SAMPLE_TRAPS):
        for m in passes.plan.moduli:
            values = [int(x) for x in drawn.integers(0, m, passes.silos + 1)]  # the last one is the hop's pad
            openings = [traps.draw_opening(value, os.urandom) for value in values]
            start = time.thread_time()
            commitments = [traps.commit(opening) for opening in openings]
            each = (time.thread_time() - start) / len(openings)
            silo += each * passes.hops
            statement = traps.Statement(bytes(32), "hop", trap, m, sum(values) % m, tuple(commitments))
            start = time.thread_time()
            if [traps.commit(opening) for opening in openings[:-1]] != commitments[:-1]:
                raise AssertionError("commitments made again differ: the times mean nothing")
            proof = traps.prove(statement, openings, os.urandom)
            hop += each + time.thread_time() - start
            start = time.thread_time()
            traps.verify(statement, proof)
            verifier += (time.thread_time() - start) * passes.hops
    return {"silo_s": silo / SAMPLE_TRAPS, "hop_s": hop / SAMPLE_TRAPS, "verifier_s": verifier / SAMPLE_TRAPS}


def _result(passes: Passes, round_: dict[str, Any], check: Figures, trap: Figures) -> dict[str, Any]:
    silos, hops, parameters = passes.silos, passes.hops, passes.layout.coordinates
    parties = silos + hops + 1
    total = silos * check["silo_s"] + hops * check["hop_s"] + check["aggregator_s"]
    one = trap_cost(passes.plan, silos, hops, parameters, 1)
    costs = check_cost(passes.plan, hops)
    expansions = 2 * silos * (hops + 1)  # at the silos, and at the hops and the aggregator
    return {
        "silos": silos,
        "parameters": parameters,
        "hops": hops,
        "repeats": {"round": round_["repeats"], "check": 2 * REPEATS},
        "cores": os.cpu_count(),
        "moduli": list(passes.plan.moduli),
        "soundness_bits": min(costs.error_bits),
        "round": {
            "seconds": round_["seconds"]["protected"],
            "cpu_s": round_["cpu_s"]["protected"],
            "checked_seconds": round_["seconds"]["checked"],
            "checked_cpu_s": round_["cpu_s"]["checked"],
            "cpu_s_by_role": _roles(round_["cpu_s_by_role"]["protected"]),
            "checked_cpu_s_by_role": _roles(round_["cpu_s_by_role"]["checked"]),
        },
        "check": {**check, "cpu_s": total},
        "adds": {
            "wall": round_["seconds"]["checked"] / round_["seconds"]["protected"] - 1,
            "cpu": round_["cpu_s"]["checked"] / round_["cpu_s"]["protected"] - 1,
            "cpu_passes": total / round_["cpu_s"]["protected"],
            "cpu_pads": parties * check["pads_s"] / round_["cpu_s"]["protected"],
            "cpu_prime_moduli": expansions
            * (check["mask_s"] - check["mask_semi_honest_s"])
            / round_["cpu_s"]["protected"],
        },
        "bytes_per_silo": costs.silo_bytes,
        "blinder_bytes": costs.blinder_bytes,
        "trap": {**trap, **{k: v for k, v in asdict(one).items() if k.endswith("bytes")}},
    }


def _roles(used: Figures) -> Figures:
    return {role: seconds for role, seconds in used.items() if role != "plain"}


def _show(result: dict[str, Any]) -> None:
    out, check, round_, trap = console(), result["check"], result["round"], result["trap"]
    print_table(
        out,
        f"{result['silos']} silos, {result['hops']} hops, {result['parameters']:,} parameters",
        {"of each": "", "ms of the check": "right", "once the pads are out": "right", "ms for a trap": "right"},
        [
            (
                role,
                f"{check[f'{role}_s'] * 1e3:,.0f}",
                f"{check['pads_s'] * 1e3:,.0f}",
                f"{trap[f'{role}_s'] * 1e3:,.2f}" if f"{role}_s" in trap else "-",
            )
            for role in ("silo", "hop", "aggregator")
        ],
    )
    adds = result["adds"]
    lines = [
        f"A round takes {round_['seconds']:.2f} s at level semi-honest and {round_['checked_seconds']:.2f} s at level",
        f"malicious: {adds['wall']:+.0%}. In processor time: {adds['cpu']:+.0%}, {round_['cpu_s']:.2f} s and",
        f"{round_['checked_cpu_s']:.2f} s. Of that, the passes of the check are {adds['cpu_passes']:.0%},",
        f"another pass when the pads are out is {adds['cpu_pads']:.0%}, and masks modulo primes take",
        f"{adds['cpu_prime_moduli']:.0%}.",
        f"A silo sends {result['bytes_per_silo']} bytes for it, beside {result['blinder_bytes']} of blinders.",
        f"A change passes with probability 2^-{result['soundness_bits']:.1f}.",
        f"A trap takes {trap['verifier_s'] * 1e3:.2f} ms of whoever verifies the proofs of all hops.",
        f"A silo sends {trap['silo_bytes']} bytes for it, and a hop {trap['hop_bytes']}.",
    ]
    out.print(" ".join(lines), soft_wrap=True)
