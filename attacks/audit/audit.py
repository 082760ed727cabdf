"""`silomix audit`: every attack of the registry on one task, in one run, with a verdict.

Federations of the task are simulated with several seeds until there are records enough to ask about, and at least one
runs for real, over gRPC, and is attacked from what its nodes recorded. The result is plain JSON, of which page.py makes
a page.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from silomix.attacks.audit.attack import Attack, Size
from silomix.attacks.audit.mounted import captures
from silomix.attacks.audit.pool import Done, Job, run_jobs
from silomix.attacks.audit.subject import Subject, describe
from silomix.attacks.audit.verdict import Json, judge
from silomix.attacks.audit.watch import watched
from silomix.attacks.errors import Unfit
from silomix.attacks.views.captured import Scene
from silomix.runtime.results import find

QUICK = Size("quick", 1000, 8)
"""Within ten minutes on two cores, for the digits."""
FULL = Size("full", 3000, 15, full=True)


def audit(
    subject: Subject,
    size: Size,
    attacks: Sequence[Attack],
    workers: int,
    command: str,
    on_done: Callable[[Done], None] = lambda _: None,
) -> Json:
    """Mount the attacks, and put together what came of them."""
    began = time.monotonic()
    work: dict[str, list[Job]] = {}
    skipped: dict[str, str] = {}
    for one in attacks:
        try:
            work[one.name] = [_guarded(job, one) for job in one.jobs(subject, size)]
        except Unfit as why:
            skipped[one.name] = str(why)
    results = iter(run_jobs([job for jobs in work.values() for job in jobs], workers, on_done))
    found: dict[str, list[tuple[Job, Any]]] = {}
    for name, jobs in work.items():
        done = [(job.arguments["job"], next(results)) for job in jobs]
        if refused := [result.args[0] for _, result in done if isinstance(result, Unfit)]:
            skipped[name] = str(refused[0])
        else:
            found[name] = done
    report: Json = {"own": subject.own, "random": subject.random, "subject": subject.about, "skipped": skipped}
    for one in attacks:
        if one.name in found:
            report |= one.gather(subject, found[one.name], report)
    setting = {
        **_setting(size.name, command),
        "silos": subject.silos,
        "rounds": size.rounds,
        "seeds": list(subject.splits),
        "precision": subject.campaign.policy.precision,
        "shadow": subject.campaign.fraction,
    }
    return _judged(report | {"setting": setting, "seconds": time.monotonic() - began}, attacks)


def _guarded(job: Job, attack: Attack) -> Job:
    return Job(attack.doing, _call, {"job": job}, job.weight)


def _call(job: Job) -> Any:
    """Do a job in whichever process. One that finds the task unfit says so, and the rest of the audit goes on."""
    try:
        return job.call(**job.arguments)
    except Unfit as why:
        return why


def audit_captures(homes: Sequence[Path], command: str) -> Json:
    """Audit federations that have already run, from their captures alone."""
    homes = [find(home).home for home in homes]  # of `silomix run` too, whose results are above its federation
    real = [watched(home) for home in homes]
    scene = Scene(homes[0])
    policy = scene.federation.policy
    report: Json = {
        "own": True,
        "random": 1 / real[0]["silos"],
        "subject": describe(policy.task, policy.task_options, scene.victims(), scene.schema),
        "skipped": {},
        "real": real,
        "setting": {**_setting("captures", command), "silos": real[0]["silos"]},
    }
    return _judged(report, [captures.ATTACK])


def _judged(report: Json, attacks: Sequence[Attack]) -> Json:
    mounted = [one for one in attacks if one.name not in report["skipped"]]
    verdict = judge(expectation for one in mounted for expectation in one.expected(report))
    summary = next((text for one in mounted if (text := one.summary(report))), "")
    return {"verdict": verdict.json(summary), "attacks": [one.name for one in mounted], **report}


def _setting(size: str, command: str) -> Json:
    return {
        "size": size,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "command": command,
    }
