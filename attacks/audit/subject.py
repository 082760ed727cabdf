"""What an audit is about: a task, its silos, the splits of its records, and what can be said of all that on a page."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

import torch
from torch import Tensor

from silomix.attacks.audit.attack import Block, Heat, Section, Size
from silomix.attacks.audit.campaign import LEAST, Campaign
from silomix.attacks.audit.verdict import Json
from silomix.attacks.errors import AttackError
from silomix.attacks.sia import PER_SILO
from silomix.attacks.views.victims import Victim
from silomix.models.simulation.experiment import Cell, Table
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.policy import Policy

SILOS = 10
ALPHA = 0.1
"""The skew of the headline: the paper's hardest case."""
DIGITS = Policy(task_options={"alpha": ALPHA})
"""What is audited unless a task is named: scikit-learn's digits, as skewed as the paper's."""
TRIES = {True: 20, False: 200}
"""Splits that are drawn until there are enough with records at every silo: of one's own task, and of the digits."""
ROWS = 12
"""Rows of a long table that are shown."""
MOST_CLASSES = 30
"""Classes of which a chart still tells something."""


@dataclass(frozen=True)
class Subject:
    """A task under audit."""

    campaign: Campaign
    """How one split of it is attacked."""
    splits: Mapping[int, int]
    """The splits by seed, each with other records at the silos: how many of them can be asked about."""
    own: bool = False
    """Whether it is a user's task: of the digits we know how well each attack works, of another task we do not."""
    about: Json = field(default_factory=dict)
    """What it is, for the report."""

    @property
    def silos(self) -> int:
        """How many silos there are."""
        return self.campaign.silos

    @property
    def random(self) -> float:
        """The rate of a random guess."""
        return 1 / self.silos

    def campaigns(self) -> list[Campaign]:
        """Return the campaign for each split."""
        return [replace(self.campaign, seed=seed) for seed in self.splits]

    def largest(self, targets: int, most: int) -> list[Campaign]:
        """Return the campaigns for a few splits, those with most records first, until there are enough to ask about."""
        chosen: list[int] = []
        for seed in sorted(self.splits, key=lambda seed: (-self.splits[seed], seed))[:most]:
            if sum(self.splits[one] for one in chosen) < targets:
                chosen.append(seed)
        return [replace(self.campaign, seed=seed) for seed in chosen]


def subject_for(policy: Policy, silos: int, size: Size, *, own: bool) -> Subject:
    """Find splits until there are records enough to ask about.

    Splits with a tiny silo are passed over as long as there are others. A task that has one split only, because it
    takes no seed or makes nothing of it, is asked about more of its records instead.
    """
    asked = replace(policy, rounds=size.rounds)
    base = Campaign(asked, silos=silos, seed=int(policy.task_options.get("seed", 1)), least=LEAST if own else 1)
    wide = replace(base, per_silo=max(PER_SILO, ceil(size.targets / silos)))
    first, second = base.victims(), replace(base, seed=base.seed + 1)
    if "seed" not in base.options or _same(first, other := second.victims()):
        return _subject(wide, {base.seed: _askable(first, wide)}, first, own)
    known = {base.seed: first, second.seed: other}
    splits: dict[int, int] = {}
    shown = first
    for seed in range(base.seed, base.seed + TRIES[own]):
        victims = known.pop(seed, None) or replace(base, seed=seed).victims()
        if min(len(victim.share[1]) for victim in victims) >= LEAST:
            shown = shown if splits else victims
            splits[seed] = _askable(victims, base)
        if sum(splits.values()) >= size.targets:
            return _subject(base, splits, shown, own)
    if own:  # silos may be small by nature: those that are too small are not asked about
        return _subject(wide, splits or {base.seed: _askable(first, wide)}, shown, own)
    raise AttackError(f"no {size.targets} records in {TRIES[own]} splits: take fewer silos, or more data")


def _subject(campaign: Campaign, splits: dict[int, int], first: list[Victim], own: bool) -> Subject:
    """Make a subject, described by the first of its splits."""
    one = replace(campaign, seed=next(iter(splits)))
    return Subject(campaign, splits, own, describe(campaign.policy.task, one.options, first, one.schema()))


def _askable(victims: list[Victim], campaign: Campaign) -> int:
    """Count the records that can be asked about: as many of each silo as the smallest has that is not left out."""
    sizes = [len(victim.share[1]) for victim in victims if len(victim.share[1]) >= campaign.least]
    return len(sizes) * min([campaign.per_silo, *sizes])


def _same(first: list[Victim], second: list[Victim]) -> bool:
    """Tell whether two splits give every silo the same records."""
    return all(torch.equal(a.share[0], b.share[0]) for a, b in zip(first, second, strict=True))


def describe(path: str, options: Mapping[str, object], victims: list[Victim], schema: Schema) -> Json:
    """Say what is trained: the task, the records of each silo by class, the network and what of it travels."""
    net, (x, _) = victims[0].net, victims[0].share
    classes = 1 + max(int(y.max()) for one in victims for _, y in (one.share, one.test) if len(y))
    sent = {spec.name for spec in schema.tensors if spec.size}
    tensors = [(name, tensor) for name, tensor in net.state_dict().items() if isinstance(tensor, Tensor)]
    return {
        "task": path,
        "options": {name: value for name, value in options.items() if name != "silo"},
        "data": {
            "shape": list(x.shape[1:]),
            "type": _word(x),
            "classes": classes,
            "test": len(victims[0].test[1]),
            "counts": [torch.bincount(one.share[1], minlength=classes).tolist() for one in victims],
        },
        "model": {
            "network": type(net).__name__,
            "values": sum(tensor.numel() for _, tensor in tensors),
            "sent": schema.parameters,
            "tensors": [
                {"name": name, "shape": list(tensor.shape), "type": _word(tensor), "sent": name in sent}
                for name, tensor in tensors
            ],
        },
    }


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def section(about: Json) -> Section:
    """Show what is trained."""
    data, model = about["data"], about["model"]
    counts, tensors = data["counts"], model["tensors"]
    options = ", ".join(f"{name} = {value}" for name, value in about["options"].items())
    sizes = [sum(row) for row in counts]
    text = (
        f"The task {about['task']}{f' with {options}' if options else ''}. {sum(sizes):,} records of shape "
        f"{_shape(data['shape'])} ({data['type']}) in {data['classes']} classes, {min(sizes):,} to {max(sizes):,} at "
        f"each of {len(counts)} silos, and {data['test']:,} to test with. The network {model['network']} has "
        f"{model['values']:,} values, of which silos send {model['sent']:,}."
    )
    blocks: list[Block] = []
    if data["classes"] <= MOST_CLASSES:
        silos = tuple(f"silo {i}" for i in range(1, len(counts) + 1))
        rows = tuple(tuple(row) for row in counts)
        blocks.append(Heat("records by silo and class", silos, tuple(map(str, range(data["classes"]))), rows))
    shown: list[tuple[Cell, ...]] = [
        (one["name"], _shape(one["shape"]), one["type"], "travels" if one["sent"] else "stays") for one in tensors
    ]
    if len(shown) > ROWS:
        left = len(shown) - ROWS + 1
        shown = [*shown[: ROWS // 2], (f"... {left} more", "", "", ""), *shown[ROWS // 2 + left :]]
    blocks.append(Table("the model", ("tensor", "shape", "type", ""), tuple(shown)))
    return Section("What is trained", text, tuple(blocks))


def _shape(sizes: list[int]) -> str:
    return " x ".join(map(str, sizes)) if sizes else "one value"
