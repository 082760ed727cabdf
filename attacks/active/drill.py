"""Runs attacks, one after the other, and judges what came of each."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack

from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Attack, Loot, Outcome, Result, Rule, judge
from silomix.attacks.active.stage import Stage
from silomix.attacks.active.without import switched_off
from silomix.attacks.active.witness import listening

ATTACK_S = 240.0
"""No attack takes a tenth of it, but on a machine that is busy with other things."""
Told = Callable[[Attack, Result | None], None]
"""Hears which attack begins, and then what came of it."""


def nobody(_: Attack, __: Result | None) -> None:
    """Tell nobody."""


def run(chosen: Iterable[Attack], without: Rule | None = None, told: Told = nobody) -> list[Result]:
    """Run attacks, with one rule switched off in the honest nodes if asked to, and return results in their order."""
    return asyncio.run(drill(tuple(chosen), without, told))


async def drill(chosen: tuple[Attack, ...], without: Rule | None = None, told: Told = nobody) -> list[Result]:
    """Run attacks cast by cast: those of one cast share a stage, unless a rule is off and they could spoil it."""
    results: dict[str, Result] = {}
    with listening() as witness, switched_off(without):
        for cast in dict.fromkeys(attack.cast for attack in chosen):
            async with AsyncExitStack() as stack:
                stage: Stage | None = None
                for attack in (one for one in chosen if one.cast == cast):
                    told(attack, None)
                    began = time.perf_counter()
                    try:
                        if stage is None:
                            stage = await stack.enter_async_context(Stage(cast, witness, without or ""))
                        loot = await _mounted(attack, stage)
                        outcome = judge(attack, loot)
                    except Exception as error:
                        loot = Loot(False, f"{type(error).__name__}: {error}")
                        outcome = Outcome.BROKEN
                    results[attack.name] = Result(attack, outcome, loot, time.perf_counter() - began)
                    told(attack, results[attack.name])
                    if without is not None or not results[attack.name].held or stage is None or stage.dead():
                        await stack.aclose()
                        stage = None
    return [results[attack.name] for attack in chosen]


async def _mounted(attack: Attack, stage: Stage) -> Loot:
    """Mount an attack when all is quiet, so that what nodes refuse is its doing."""
    await stage.clear()
    await stage.quiet()
    stage.mark()
    try:
        async with asyncio.timeout(ATTACK_S):
            return await attack.run(stage)
    except Refused as refused:  # the first honest node that was asked said no
        first = refused.refusal
        more = (r for r in stage.refusals() if (r.node, r.reason) != (first.node, first.reason))
        return Loot(False, "nothing", (first, *more))
