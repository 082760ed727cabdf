"""One federation under attack: train it, look at every round through each mode's eyes, and count right guesses.

The audit, the paper's figures and the defences are all made of campaigns, which differ in the policy and in what the
adversary knows. One is repeated with other seeds until there are enough records to tell 10% from 15%.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from silomix.attacks.errors import AttackError, Unfit
from silomix.attacks.prior import CLASSES, INVENTED, class_losses, invented
from silomix.attacks.remap import By, reconstruct
from silomix.attacks.sia import PER_SILO, Inference, Outcome, Targets, draw_targets, outcome
from silomix.attacks.sums import disaggregate
from silomix.attacks.views.classifier import Records
from silomix.attacks.views.shadow import FRACTION, shadow_sets
from silomix.attacks.views.simulated import Truth, view_of
from silomix.attacks.views.victims import Victim, victims_of
from silomix.attacks.views.view import Mode, View
from silomix.models.simulation.simulate import SimulatedRound, simulate
from silomix.runtime.core.digest import digest
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import Policy
from silomix.runtime.factory import find_factory, takes
from silomix.runtime.task import load_task

LEAST = 10
"""Records that the smallest silo has at least: with fewer there is too little to ask about: another split is drawn."""
DISAGGREGATED = "sums-over-changing-cohorts"
"""The name of the attack on sums alone that compares rounds."""


@dataclass(frozen=True)
class Campaign:
    """What is attacked, and what the adversary knows."""

    policy: Policy
    silos: int = 10
    seed: int = 1
    modes: tuple[Mode, ...] = tuple(Mode)
    fraction: float = FRACTION
    """Size of the shadow sets."""
    noise: str = "clean"
    by: By = "accuracy"
    """How remapping judges a candidate."""
    least: int = 1
    """Silos with fewer records are not asked about."""
    per_silo: int = PER_SILO
    """Records asked about per silo, at most."""
    baselines: bool = False
    """Whether to also measure what the shadow sets tell by themselves (prior.py)."""
    workers: int = 1

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        """The task's options: the policy's and, if it takes them, the seed and a shadow set held back from training."""
        given = {"silos": self.silos, "shadow": FRACTION, "seed": self.seed}
        own = {name: value for name, value in given.items() if takes(find_factory(self.policy.task), name)}
        fixed = {"seed": self.seed} if "seed" in own else {}
        return {**own, **self.policy.task_options, **fixed}

    def victims(self) -> list[Victim]:
        """Make all silos' tasks, as the experiment knows them."""
        path, options = self.policy.task, self.options
        return victims_of(path, (load_task(path, {**options, "silo": silo}) for silo in range(self.silos)))

    def schema(self) -> Schema:
        """The model's tensors: those of whoever has no records."""
        return load_task(self.policy.task, self.options).schema()


@dataclass
class Findings:
    """What came of a campaign."""

    outcomes: dict[str, Outcome]
    accuracy: list[float]
    """The joint model's, by round."""
    targets: int
    unfit: dict[str, str] = field(default_factory=dict)
    """What could not be mounted, with the reason."""


@dataclass
class Siege:
    """The adversary's side of a campaign: what it knows, and the attacks it has under way, one for each mode."""

    net: nn.Module
    schema: Schema
    shadows: Sequence[Records]
    targets: Targets
    campaign: Campaign
    attacks: dict[str, Inference] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)
    """The attacks that cannot be mounted on this network, each with the reason."""

    @classmethod
    def of(cls, campaign: Campaign) -> "Siege":
        """Draw the records to ask about, and the shadow sets."""
        victims = campaign.victims()
        targets = draw_targets([victim.share for victim in victims], campaign.seed, campaign.per_silo, campaign.least)
        shadows = shadow_sets(victims, campaign.seed, campaign.fraction, campaign.noise)
        return cls(victims[0].net, campaign.schema(), shadows, targets, campaign)

    def attack(self, name: str) -> Inference:
        """Return the attack of that name, with dice of its own."""
        if name not in self.attacks:
            dice = digest("dice", self.campaign.policy.canonical(), self.campaign.seed, name)
            self.attacks[name] = Inference(self.net, self.targets, tuple(dice))
        return self.attacks[name]

    def look(self, name: str, view: View) -> None:
        """Attack one round as seen in one mode."""
        if name in self.unfit:
            return
        shadows = [self.shadows[silo] for silo in view.cohort]
        try:
            models = reconstruct(view, shadows, self.net, self.campaign.by)
        except Unfit as error:
            self.unfit[name] = str(error)
            self.attacks.pop(name, None)  # it may have fitted at first, by chance
            return
        self.attack(name).round(models, view.cohort)

    def compare(self, view: View, rng: np.random.Generator) -> None:
        """Attack without pieces of models: by the shadow sets alone, and on invented values."""
        self.attack(CLASSES).losses(class_losses(self.shadows, self.targets, view.cohort), view.cohort)
        self.look(INVENTED, invented(view, rng))

    def truth(self, done: SimulatedRound) -> Truth:
        """Put a simulated round into the form that views are made of."""
        policy = self.campaign.policy
        return Truth(
            self.schema,
            done.cohort,
            done.before,
            done.trained,
            policy.precision,
            roster=self.campaign.silos,
            own_bounds=done.bounds,
        )


def run(campaign: Campaign) -> Findings:
    """Run a federation without sockets, and mount source inference on every round in every mode."""
    siege = Siege.of(campaign)
    policy = replace(campaign.policy, task_options=campaign.options)
    rounds = simulate(
        policy, campaign.silos, seed=campaign.seed, protect=False, workers=campaign.workers, evaluate_every=1
    )
    accuracy: list[float] = []
    sums: list[View] = []
    changing = policy.subsample < 1
    for done in rounds:
        truth = siege.truth(done)
        for number, mode in enumerate(campaign.modes):
            rng = np.random.default_rng([campaign.seed, done.round, number])
            siege.look(mode, view_of(truth, mode, rng))
        if campaign.baselines:
            rng = np.random.default_rng([campaign.seed, done.round])
            siege.compare(view_of(truth, Mode.PARAMETER, rng), rng)
        if changing:
            sums.append(view_of(truth, Mode.TRUSTED, np.random.default_rng(campaign.seed)))
        accuracy.append(done.metrics.get("accuracy", float("nan")))
    if changing:
        for view, models in zip(sums, disaggregate(sums), strict=True):
            siege.attack(DISAGGREGATED).round(models, view.cohort)
    outcomes = {name: outcome(attack) for name, attack in siege.attacks.items()}
    return Findings(outcomes, accuracy, len(siege.targets.source), siege.unfit)


def big_enough(campaign: Campaign, least: int = LEAST) -> bool:
    """Tell whether every silo of this split has records enough to ask about."""
    return min(len(victim.share[1]) for victim in campaign.victims()) >= least


def splits(campaign: Campaign, least: int = LEAST, tries: int = 200) -> Iterator[Campaign]:
    """Yield the campaign with the seeds, from its own on, whose smallest silo is big enough."""
    for seed in range(campaign.seed, campaign.seed + tries):
        one = replace(campaign, seed=seed)
        if big_enough(one, least):
            yield one
    raise AttackError(f"no further split of {tries} gives every silo {least} records: take fewer silos, or more data")


def options_of(policy: Policy, **changes: str | int | float | bool) -> Policy:
    """Return the policy with other options of its task."""
    options: Mapping[str, str | int | float | bool] = {**policy.task_options, **changes}
    return replace(policy, task_options=options)
