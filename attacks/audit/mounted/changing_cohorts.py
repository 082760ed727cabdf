"""Cohorts that change from round to round: sums over different silos can be compared."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from silomix.attacks.audit.attack import Attack, Section, Size, percent
from silomix.attacks.audit.campaign import DISAGGREGATED, Campaign, run
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Json
from silomix.attacks.errors import Unfit
from silomix.attacks.views.view import Mode
from silomix.models.simulation.simulate import pretend

NAME = "changing-cohorts"
SHARE = 0.5
"""Of the silos that are invited to a round; the policy's minimum cohort may ask for more."""


def compare_rounds(campaign: Campaign) -> Json:
    """Attack sums over cohorts that change from round to round: a limit of every protocol that releases sums."""
    torch.set_num_threads(1)
    found = run(campaign)
    each = {"one by one": Mode.SEMI_HONEST, "taken apart": DISAGGREGATED}
    return {
        "subsample": campaign.policy.subsample,
        "cohort": pretend(campaign.policy, campaign.silos, campaign.seed).drawn,
        "silos": campaign.silos,
        "rounds": campaign.policy.rounds,
        "random": 1 / campaign.silos,
        **{name: found.outcomes[key].together.json() for name, key in each.items()},
    }


def _jobs(subject: Subject, size: Size) -> list[Job]:
    one = subject.campaigns()[0]
    rounds = 30 if size.full else max(12, size.rounds)
    policy = replace(one.policy, rounds=rounds, subsample=SHARE)
    if pretend(policy, subject.silos, one.seed).drawn == subject.silos:
        raise Unfit(f"of {subject.silos} silos all take part in every round, for fewer would be too small a cohort")
    drawn = replace(one, policy=policy, modes=(Mode.SEMI_HONEST,))
    return [Job(NAME, compare_rounds, {"campaign": drawn}, 0.8 * rounds)]


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    return {"changing_cohorts": done[0][1]}


def _section(report: Json) -> Section:
    found = report["changing_cohorts"]
    return Section(
        "Cohorts that change",
        f"If only {found['cohort']} of {found['silos']} silos are drawn for each round, cohorts change, and sums over "
        f"different silos can be compared. After {found['rounds']} rounds the adversary is right "
        f"{percent(found['taken apart'])}, where a random guess is right {found['random']:.0%}. Keep the cohort "
        "constant, or add noise (docs/threat-model.md).",
    )


ATTACK = Attack(NAME, "changing cohorts", _jobs, _gather, _section)
