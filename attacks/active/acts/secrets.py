"""R6: a hop that is seized when a round is over gives away nothing of it."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from silomix.attacks.active.acts.casts import AGGREGATOR
from silomix.attacks.active.liars.bodies import seed_for
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.seized import in_files, in_memory
from silomix.attacks.active.stage import FIRST, SECOND, Stage
from silomix.runtime.core.numbers.masks import Secret, derive
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.shuffler import State
from silomix.runtime.store.home import Home
from silomix.runtime.store.vault import Vault

SEIZED = Cast(apart=(SECOND,))
AES_BYTES = 16
"""Of what a mask is made with, the first half draws nearly all of it."""
SETTLE_S = 1.0
"""Time for a hop that has heard that the round is over to be done with it."""


def _keys_now(home: Path, scratch: Path) -> dict[str, bytes]:
    """Read a running hop's round keys from a copy of its files, as only the drill can."""
    shutil.copytree(Home(home).state.secrets, scratch)
    try:
        return {silo: key.value for _, _, keys in Vault(scratch).lots("keys") for silo, key in keys}
    finally:
        shutil.rmtree(scratch)


async def _seize(stage: Stage) -> tuple[Manifest, dict[str, bytes]]:
    """Run a round to its end; return all that would open bodies of it: keys, seeds, and what streams are keyed with."""
    us, home, silos = stage.aggregator, stage.home / "f" / SECOND, stage.honest_silos
    manifest = await stage.begin(silos=silos[1:])  # the cohort stays open until its keys are copied
    keys = await asyncio.to_thread(_keys_now, home, stage.home / "copied")
    await us.announce(manifest, silos[:1])
    await stage.until(lambda: len(stage.came(manifest).headers) == len(silos), "all headers came through")
    context = manifest.context(manifest.layer(SECOND))
    wanted: dict[str, bytes] = {}
    for silo, key in keys.items():
        seed = seed_for(us.came[manifest.digest].headers[silo], SECOND, Secret(key), manifest)
        assert seed is not None
        wanted |= {
            f"key of {silo}": key,
            f"key of {silo} in hex": key.hex().encode(),
            f"seed of {silo}": seed.value,
            f"mask of {silo}": derive(seed.value, context.info())[:AES_BYTES],
        }
    await stage.until(lambda: stage.hop(FIRST).core.state is State.DONE, "the round is over at hop 1")
    await asyncio.sleep(SETTLE_S)
    return manifest, wanted


def _told(stage: Stage, found: Mapping[str, int], where: str) -> Loot:
    kinds = {kind: sum(n for name, n in found.items() if name.startswith(kind)) for kind in ("key", "seed", "mask")}
    silos = {name.split(" of ")[1].removesuffix(" in hex") for name, n in found.items() if n}
    said = f"secrets of the round in {where}" if silos else f"no secret of the round in {where}"
    figures = {f"{kind}s": float(n) for kind, n in kinds.items()}
    return stage.loot(bool(silos), said, silos=len(silos), **figures)


@attack("hop-seized-disk", Rule.R6, "whoever seizes shuffler-2", Outcome.USELESS, SEIZED)
async def hop_seized_disk(stage: Stage) -> Loot:
    """A hop's disk is taken after the round, and searched for what opens bodies."""
    _, wanted = await _seize(stage)
    return _told(stage, await asyncio.to_thread(in_files, stage.home / "f" / SECOND, wanted), "the hop's files")


@attack("hop-seized-memory", Rule.R6, "whoever seizes shuffler-2", Outcome.USELESS, SEIZED)
async def hop_seized_memory(stage: Stage) -> Loot:
    """A hop's memory is read after the round, and searched for what opens bodies."""
    _, wanted = await _seize(stage)
    pid = stage.aside[SECOND].pid
    return _told(stage, await asyncio.to_thread(in_memory, pid, wanted), "the hop's memory")


@attack("secrets-kept-alive", Rule.R6, "aggregator", Outcome.USELESS, AGGREGATOR)
async def secrets_kept_alive(stage: Stage) -> Loot:
    """A round is never brought to its end, and keys for a further attempt are asked for, so that its own are kept."""
    node, policy = stage.hop(SECOND), stage.federation.policy
    others = stage.honest_silos[1:]  # one stays away, so that the cohort stays open
    manifest = await stage.begin(silos=others)
    number = (manifest.round, manifest.attempt)
    await stage.until(lambda: len(stage.came(manifest).headers) == len(others), "all headers came through")
    limit = policy.attempts * (policy.deadline_s + policy.release_s)
    stage.pass_time(SECOND, limit - 10)
    await stage.aggregator.prepare(SECOND, manifest.round, 2)
    stage.pass_time(SECOND, 20)
    kept = not await stage.within(SETTLE_S, lambda: number not in node.core.keys)
    said = "round keys that outlive their time" if kept else "the keys are gone in time"
    return stage.loot(kept, said, keys=len(node.core.keys.get(number, {})), beyond_s=10 * kept)
