"""Source inference by mode: the heart of an audit, on every way in which updates can reach a server."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from silomix.attacks.audit.attack import Attack, Bar, Bars, Block, Section, Size, Tone, percent, share
from silomix.attacks.audit.campaign import Campaign, run
from silomix.attacks.audit.pool import Job
from silomix.attacks.audit.subject import Subject
from silomix.attacks.audit.verdict import Expectation, Json
from silomix.attacks.prior import CLASSES, INVENTED
from silomix.attacks.sia import Outcome, pooled
from silomix.attacks.views.view import CONTROLS, EXPOSED, MEANINGS, PROTECTED, Mode
from silomix.models.simulation.experiment import Cell, Line, Plot, Table
from silomix.runtime.core.numbers.plan import Encoding, Level, plan

NAME = "by-mode"
DRAWN = (Mode.NONE, Mode.SEMI_HONEST, Mode.ALL_COLLUDE, Mode.MODEL, Mode.LAYER, Mode.PARAMETER)
"""The modes whose rounds are drawn: the others lie on top of these."""


def attacked(campaign: Campaign) -> Json:
    """Train one split and mount source inference on every round, in each mode."""
    torch.set_num_threads(1)
    found = run(campaign)
    return {
        "outcomes": {name: one.counts() for name, one in found.outcomes.items()},
        "unfit": found.unfit,
        "accuracy": found.accuracy,
    }


def pooled_modes(runs: Sequence[Json]) -> dict[str, Outcome]:
    """Pool the splits, mode by mode."""
    names = [name for name in runs[0]["outcomes"] if all(name in one["outcomes"] for one in runs)]
    return {name: pooled([Outcome.of(one["outcomes"][name]) for one in runs]) for name in names}


def _jobs(subject: Subject, size: Size) -> list[Job]:
    campaigns = (replace(one, baselines=True) for one in subject.campaigns())
    return [Job(NAME, attacked, {"campaign": one}, 1.5 * size.rounds) for one in campaigns]


def _gather(subject: Subject, done: Sequence[tuple[Job, Any]], report: Json) -> Json:
    runs = [result for _, result in done]
    found = pooled_modes(runs)
    return {
        "sia": {name: one.json() for name, one in found.items() if name not in (CLASSES, INVENTED)},
        "baselines": {name: found[name].json() for name in (CLASSES, INVENTED) if name in found},
        "unfit": {name: why for one in runs for name, why in one["unfit"].items()},
        "accuracy": [sum(values) / len(values) for values in zip(*(one["accuracy"] for one in runs), strict=True)],
        "bits": bits(subject.silos, subject.campaign.policy.precision),
        "meanings": {str(mode): text for mode, text in MEANINGS.items()},
    }


def bits(silos: int, precision: int) -> Json:
    """Return bits per parameter by mode, framing aside."""
    unary = plan(silos, precision, Encoding.UNARY, Level.TRUSTED)
    counts = plan(silos, precision, Encoding.COUNTS, Level.SEMI_HONEST)
    plain = dict.fromkeys((str(mode) for mode in EXPOSED), 32)
    packed = dict.fromkeys((str(Mode.TRUSTED), str(Mode.SEMI_HONEST)), counts.packed_bits)
    return {**plain, str(Mode.UNARY): sum(unary.moduli), **packed}


def _expected(report: Json) -> Iterable[Expectation]:
    """Protected modes hold a random guess; nothing else does.

    On a task of which we know nothing, undoing a shuffle may fail for reasons of its own, and that settles nothing.
    """
    exposed = (Mode.NONE,) if report["own"] else EXPOSED
    for modes, hidden in ((PROTECTED, True), (exposed, False), (CONTROLS, False)):
        for mode in modes:
            score, ours = report["sia"].get(str(mode)), mode is not Mode.UNARY
            yield from Expectation.of(f"mode {mode}", score, report["random"], hidden=hidden, ours=ours)


def _summary(report: Json) -> str:
    ours, plain, control = (report["sia"][str(m)]["accuracy"] for m in (Mode.SEMI_HONEST, Mode.NONE, Mode.ALL_COLLUDE))
    return (
        f"Asked which silo a record came from, a server that runs silomix is right {ours:.1%} of the time, as by "
        f"rolling a die ({report['random']:.0%}). Unprotected, the same attack is right {plain:.1%} of the time, and "
        f"{control:.1%} if every hop of the chain betrays the silos."
    )


def tone_of(mode: Mode) -> Tone:
    """Say how a mode is to be read."""
    return Tone.EXPOSED if mode in EXPOSED else Tone.CONTROL if mode in CONTROLS else Tone.PROTECTED


def _section(report: Json) -> Section:
    random, sia = report["random"], report["sia"]
    measured = [mode for mode in Mode if str(mode) in sia]
    bars = tuple(
        Bar(str(mode), score["accuracy"], score["low"], score["high"], tone_of(mode))
        for mode in measured
        for score in (sia[str(mode)],)
    )
    rows: list[tuple[Cell, ...]] = []
    for mode in measured:
        score, sent = sia[str(mode)], report["bits"].get(str(mode))
        cells = (share(score), share(score["last"]), share(score["together"]))
        rows.append((f"{mode}\n{report['meanings'][str(mode)]}", *cells, sent))
    blocks: list[Block] = [
        Bars("right guesses by mode, best round", bars, random, f"random guess {random:.0%}"),
        _by_round(report),
        Table("", ("mode", "best round", "last round", "all rounds", "bits"), tuple(rows)),
    ]
    unfit = {mode: why for mode, why in report["unfit"].items() if mode != INVENTED}
    for why in dict.fromkeys(unfit.values()):
        modes = [mode for mode, reason in unfit.items() if reason == why]
        named = f"Modes {' and '.join(modes)}" if len(modes) > 1 else f"Mode {modes[0]}"
        blocks.append(f"{named} could not be attacked here: {why}.")
    blocks += _beside(report)
    return Section(
        "Source inference by mode",
        "How often the guess names the right silo, with 99.9% intervals. Red: modes that do not protect. Green: modes "
        "that should. Grey: controls, the same attack with one assumption taken away: it must succeed there, or its "
        "failure elsewhere would prove nothing. Bits are what a silo sends for each parameter, framing aside.",
        tuple(blocks),
    )


def _by_round(report: Json) -> Plot:
    lines = []
    for mode in DRAWN:
        if score := report["sia"].get(str(mode)):
            points = tuple((float(i), one["accuracy"]) for i, one in enumerate(score["by_round"], 1))
            lines.append(Line(str(mode), points, tuple((one["low"], one["high"]) for one in score["by_round"])))
    accuracy = tuple((float(i), value) for i, value in enumerate(report["accuracy"], 1))
    lines.append(Line("model accuracy", accuracy))
    return Plot(
        "right guesses by round, and the joint model's accuracy",
        "round",
        "right guesses",
        tuple(lines),
        report["random"],
        "random guess",
    )


def _beside(report: Json) -> list[Block]:
    """What the adversary knew before: no protocol can take that away."""
    classes, invented = (report["baselines"].get(name) for name in (CLASSES, INVENTED))
    if classes is None:
        return []
    text = (
        "What the adversary knew before: undoing a shuffle takes a shadow set of every silo, a few records like its "
        "own. Whoever has those can guess by a record's class alone, without any traffic, and is right "
        f"{percent(classes['last'])}. No protocol can take that away."
    )
    if invented is not None:
        text += (
            " Picking each value of the last layer among invented ones, round the joint model, instead of among "
            f"captured ones is right {percent(invented)} in the best round; among captured ones, "
            f"{percent(report['sia'][str(Mode.PARAMETER)])}."
        )
    return [text]


ATTACK = Attack(NAME, "source inference", _jobs, _gather, _section, _expected, _summary)
