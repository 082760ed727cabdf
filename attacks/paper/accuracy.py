"""The paper's experiments on accuracy, repeated: by precision, with other rules, under differential privacy, in groups.

`silomix reproduce` runs them. Each is a function of a scale and a progress; what it says beside its table is what was
found here and what the paper prints.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from silomix.attacks.paper.accuracy_trials import LARGER, SETTINGS, AccuracyTrials, Option, policy_for, weights
from silomix.models.simulation.experiment import RUNS, Cell, Experiment, Line, Plot, Progress, Result, Scale, Table
from silomix.runtime.core.learning.noise_account import multiplier_for, spent
from silomix.runtime.core.numbers.plan import Quantiser
from silomix.runtime.core.policy import Server, UpdateKind
from silomix.runtime.task import load_task

DIGITS = (1, 2, 3, 4, 5)
PRINTED: dict[str, dict[int, float]] = {
    "mnist": {0: 0.982, 1: 0.12, 2: 0.9613, 3: 0.98, 4: 0.9807, 5: 0.9812},
    "synthetic": {0: 0.8048, 1: 0.6519, 2: 0.7596, 3: 0.7607, 4: 0.8030},
    "har": {0: 0.9038, 1: 0.1683, 2: 0.5358, 3: 0.8772, 4: 0.8928},
    "newsgroups": {0: 0.6790, 1: 0.0303, 2: 0.0516, 3: 0.6400, 4: 0.6690},
}
"""What the paper prints, by digits; 0 stands for vanilla. Tables tab:dp_results (no DP) and tab:different_model."""
DP_PRINTED = {
    1: {0: 0.87, 1: 0.11, 2: 0.70, 3: 0.8351, 4: 0.8595, 5: 0.8644},
    2: {0: 0.8846, 1: 0.1148, 2: 0.7167, 3: 0.8472, 4: 0.8732, 5: 0.8807},
    5: {0: 0.9021, 1: 0.1165, 2: 0.7594, 3: 0.8756, 4: 0.8983, 5: 0.9012},
}
"""Table tab:dp_results, by epsilon and digits."""
RANGES_PRINTED = {1: "-0.438 to 0.592", 2: "-0.412 to 0.573", 5: "-0.400 to 0.543"}
"""Table tab:dp_ranges."""
FLOORED = (
    "With one digit the paper's accuracy is chance. Rounding down, as Alg. 1 prints it, does that by itself: it shifts "
    "every parameter by half a step on average, in each round anew. Rounded to nearest, one digit keeps as much as "
    "training moves parameters by more than half a step in a round: much on the digits, nothing on MNIST at lr 0.01."
)


def by_precision(scale: Scale, progress: Progress, *, data: str = "", digits: tuple[int, ...] = DIGITS) -> Result:
    """Accuracy by r against vanilla: changes, whole models, and whole models rounded down as Alg. 1 prints it."""
    data = data or scale.data
    trials = AccuracyTrials(data, scale, progress, 1 + 3 * len(digits))
    printed = PRINTED.get(data, {})
    vanilla = trials.run("vanilla", vanilla=True)
    rows: list[tuple[Cell, ...]] = [("vanilla", vanilla, vanilla, vanilla, printed.get(0))]
    for r in digits:
        delta = trials.run(f"delta r={r}", precision=r)
        whole = trials.run(f"weights r={r}", **weights(precision=r))
        floored = trials.run(f"floor r={r}", floor=r, **weights())
        rows.append((f"r = {r}", delta, whole, floored, printed.get(r)))
    columns = ("digits", "delta (ours)", "weights", "weights, rounded down", "paper, weights")
    lines = tuple(
        Line(columns[i], tuple((float(r), _number(row[i])) for r, row in zip(digits, rows[1:], strict=True)))
        for i in (1, 2, 3)
    )
    plot = Plot(f"accuracy by precision, {data}", "digits r", "accuracy", lines, vanilla, "vanilla")
    table = Table(f"Accuracy by precision on {data}", columns, tuple(rows))
    return Result((table,), (plot,), (trials.about(), FLOORED), trials.values())


def other_rules(scale: Scale, progress: Progress) -> Result:
    """FedProx and FedSGD by r."""
    rules: dict[str, tuple[dict[str, Option], int]] = {
        "FedProx, mu = 0.1": ({"mu": 0.1}, scale.rounds),
        # One step a round is little: more rounds, at a rate at which a step of the whole share does not overshoot.
        "FedSGD": ({"algorithm": "fedsgd", "lr": 0.2, "momentum": 0.0}, 10 * scale.rounds),
    }
    digits = DIGITS[::2] if scale.name == "quick" else DIGITS
    trials = AccuracyTrials(scale.data, scale, progress, len(rules) * (1 + 2 * len(digits)))
    rows: list[tuple[Cell, ...]] = []
    for name, (options, rounds) in rules.items():
        vanilla = trials.run(f"{name} vanilla", vanilla=True, options=options, rounds=rounds)
        rows.append((name, "vanilla", vanilla, vanilla))
        for r in digits:
            delta = trials.run(f"{name} delta r={r}", options=options, rounds=rounds, precision=r)
            whole = trials.run(f"{name} weights r={r}", options=options, **weights(rounds=rounds, precision=r))
            rows.append((name, f"r = {r}", delta, whole))
    columns = ("rule", "digits", "delta (ours)", "weights")
    note = (
        f"FedSGD runs {10 * scale.rounds} rounds of one step. A step is far smaller than one digit of a bound of 1, so "
        "with r = 1 nothing moves, neither as a change nor as a whole model. The paper (CIFAR-10) finds r = 3 "
        "comparable and r = 5 the same as vanilla."
    )
    table = Table(f"Accuracy with other rules on {scale.data}", columns, tuple(rows))
    return Result((table,), (), (trials.about(), note), trials.values())


PRIVATE: dict[str, dict[str, Option]] = {
    "digits": {"model": "linear", "epochs": 1, "batch": 512, "lr": 1.0, "momentum": 0.0},
}
"""Local training under DP where a data set needs its own: with shares of a hundred records, few and large steps."""
BY_EXAMPLES = {"weight_levels": 1000}
"""Under DP the noise of a silo with few records is large, so the mean goes by examples."""


def _private(data: str, epsilon: float, scale: Scale, **more: Option) -> dict[str, Option]:
    """Options of DP-SGD, without momentum, which would only carry the noise on."""
    given: dict[str, Option] = {"momentum": 0.0, **PRIVATE.get(data, {})}
    return {**given, "dp_epsilon": epsilon, "dp_rounds": scale.rounds, "dp_seeded": True, "dp_clip": 1.0, **more}


def _about_dp(trials: AccuracyTrials) -> str:
    small = "1,437 images of 8 by 8 pixels, logistic regression, one step over all records of a silo in each round"
    return f"{trials.about(small if trials.data == 'digits' else '')} The mean goes by examples."


def under_dp(scale: Scale, progress: Progress) -> Result:
    """Accuracy by r where silos train with DP-SGD."""
    data, digits = scale.data, DIGITS[::2] if scale.name == "quick" else DIGITS
    trials = AccuracyTrials(data, scale, progress, 3 * (1 + len(digits)) + 1)
    none = trials.run("no dp", vanilla=True, options=PRIVATE.get(data, {}), **BY_EXAMPLES)
    rows: list[tuple[Cell, ...]] = [("none", "vanilla", none, PRINTED["mnist"][0])]
    for epsilon in (1, 2, 5):
        options = _private(data, float(epsilon), scale)
        vanilla = trials.run(f"epsilon {epsilon} vanilla", vanilla=True, options=options, **BY_EXAMPLES)
        rows.append((str(epsilon), "vanilla", vanilla, DP_PRINTED[epsilon][0]))
        for r in digits:
            change = weights(precision=r, **BY_EXAMPLES)
            found = trials.run(f"epsilon {epsilon} weights r={r}", options=options, **change)
            rows.append((str(epsilon), f"r = {r}", found, DP_PRINTED[epsilon].get(r)))
    note = (
        "Epsilon is for each record of a silo, over all rounds, at delta 1e-5, by the moments accountant. The noise "
        "does not shrink with fewer records: on small shares it costs far more accuracy than in the paper, whose silos "
        "have thousands of records each."
    )
    table = Table(f"Accuracy under DP-SGD on {data}", ("epsilon", "digits", "weights", "paper, MNIST"), tuple(rows))
    return Result((table,), (), (_about_dp(trials), note), trials.values())


def dp_ranges(scale: Scale, progress: Progress) -> Result:
    """How far parameters go under DP-SGD when nothing holds them back, and when the noise is cut."""
    trials = AccuracyTrials(scale.data, scale, progress, 6)
    rows: list[tuple[Cell, ...]] = []
    for epsilon in (1, 2, 5):
        cells: list[Cell] = [str(epsilon)]
        for how in ("off", "truncate"):
            name = f"range epsilon {epsilon} {how}"
            options = _private(scale.data, float(epsilon), scale, dp_range=how)
            accuracy = trials.run(name, vanilla=True, options=options, **BY_EXAMPLES)
            found = trials.found[name]
            low, high = min(row["range"][0] for row in found), max(row["range"][1] for row in found)
            cells += [f"{low:.3f} to {high:.3f}", max(row["outside"] for row in found), accuracy]
        rows.append((*cells, RANGES_PRINTED[epsilon]))
    parts = ("range", "share beyond 1", "accuracy")
    columns = ("epsilon", *parts, *(f"{part}, truncated" for part in parts), "paper, MNIST")
    note = (
        "The range is over all silos, rounds and parameters. It is the silos with few records that go far: their noise "
        "is the largest. Truncated noise keeps to the bound of 1 by construction."
    )
    table = Table(f"Range of parameters under DP-SGD on {scale.data}", columns, tuple(rows))
    return Result((table,), (), (_about_dp(trials), note), trials.values())


def median_of_groups(scale: Scale, progress: Progress) -> Result:
    """FedMedian over the means of groups of k silos."""
    sizes = (1, 2, 3, 5)
    trials = AccuracyTrials(scale.data, scale, progress, 1 + 2 * len(sizes))
    average = trials.run("average", vanilla=True)
    rows: list[tuple[Cell, ...]] = [("FedAvg, vanilla", None, average, None)]
    for k in sizes:
        change: dict[str, Any] = {"server": Server.MEDIAN, "group_size": k}
        rough = trials.run(f"median k={k} r=2", **weights(precision=2), **change)
        fine = trials.run(f"median k={k} r=4", **weights(precision=4), **change)
        rows.append((f"FedMedian, k = {k}", rough, fine, {1: 0.98, 2: 0.972}.get(k)))
    columns = ("rule", "r = 2", "r = 4", "paper, MNIST, r = 2")
    note = (
        "k = 1 is the median over silos, which shows every silo; the runtime forms no group of fewer than three, for "
        "k = 2, as in the paper, shows each silo of a pair the other's update. Where classes are spread as unevenly as "
        "here, the median drops what few silos know: it is the rule that costs accuracy, not the digits."
    )
    table = Table(f"FedMedian in groups on {scale.data}", columns, tuple(rows))
    return Result((table,), (), (trials.about(), note), trials.values())


def one_byte(scale: Scale, progress: Progress) -> Result:
    """The int8 quantiser beside decimal digits."""
    trials = AccuracyTrials(scale.data, scale, progress, 7)
    vanilla = trials.run("vanilla", vanilla=True)
    rows: list[tuple[Cell, ...]] = [("vanilla", vanilla, vanilla)]
    for name, change in (
        ("int8", {"quantiser": Quantiser.INT8}),
        ("r = 2", {"precision": 2}),
        ("r = 3", {"precision": 3}),
    ):
        both = [trials.run(f"{name} {kind}", update=kind, **change) for kind in UpdateKind]
        rows.append((name, *both))
    columns = ("quantiser", *(f"{kind}" for kind in UpdateKind))
    note = "int8 has 127 steps on each side of zero, r = 2 has 99. The paper expects a negligible loss, for BERT."
    table = Table(f"One byte for a parameter on {scale.data}", columns, tuple(rows))
    return Result((table,), (), (trials.about(), note), trials.values())


def central_noise(scale: Scale, progress: Progress) -> Result:
    """Noise in the sum, added by the silos in shares: what protecting whole silos costs. Beyond the paper."""
    silos, clip, delta = 100, 0.5, 1e-3
    options: dict[str, Option] = {"silos": silos, "model": "linear", "alpha": 1.0}
    base: dict[str, Any] = {"precision": 3, "clip_norm": clip, "minimum_cohort": silos}
    trials = AccuracyTrials("digits", scale, progress, 5)
    policy = policy_for("digits", scale, 1, options)
    parameters = load_task(policy.task, policy.task_options).schema().parameters
    rows: list[tuple[Cell, ...]] = [
        ("none, no clipping", None, trials.run("no noise", silos=silos, options=options, precision=3)),
        ("none", None, trials.run("clipped", silos=silos, options=options, **base)),
    ]
    for epsilon in (20.0, 5.0, 1.0):
        asked = replace(policy, **base)
        z = multiplier_for(asked, parameters, epsilon, delta, silos)
        exact = spent(replace(asked, noise_multiplier=z), parameters, scale.rounds, delta, silos)
        found = trials.run(f"epsilon {epsilon}", silos=silos, options=options, **base, noise_multiplier=z)
        rows.append((f"{exact:.3g}", z, found))
    note = (
        f"{silos} silos of about 14 records, logistic regression (650 parameters), clip norm {clip}, delta {delta}: "
        "epsilon is for a silo as a whole, over all rounds. The noise in the mean falls with the number of silos, and "
        "with ten of them nothing of the model would be left."
    )
    table = Table("Discrete Gaussian noise in the sum", ("epsilon", "noise multiplier", "accuracy"), tuple(rows))
    return Result((table,), (), (note,), trials.values())


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "accuracy-by-precision",
        "Accuracy by precision r, against vanilla",
        "Figure fig:acc_with_r",
        by_precision,
        data=tuple(name for name in SETTINGS if name != "digits"),
    ),
    Experiment(
        "accuracy-synthetic",
        "Accuracy by r on the synthetic table",
        "Table tab:different_model",
        partial(by_precision, data="synthetic"),
    ),
    Experiment(
        "accuracy-har",
        "Accuracy by r on UCI HAR",
        "Table tab:different_model",
        partial(by_precision, data="har", digits=DIGITS[:4]),
        "needs har: its files in the data directory",
    ),
    Experiment(
        "accuracy-newsgroups",
        "Accuracy by r on 20 Newsgroups",
        "Table tab:different_model",
        partial(by_precision, data="newsgroups", digits=DIGITS[:4]),
        "needs newsgroups: `silomix data get newsgroups`",
    ),
    Experiment(
        "accuracy-rules",
        "Accuracy by r with FedProx and FedSGD",
        "Figure app:exp_more_agg_func_ACC",
        other_rules,
        data=LARGER,
    ),
    Experiment("accuracy-dp", "Accuracy by r under DP-SGD", "Table tab:dp_results", under_dp, data=LARGER),
    Experiment("dp-ranges", "Range of parameters under DP-SGD", "Table tab:dp_ranges", dp_ranges, data=LARGER),
    Experiment(
        "fedmedian-groups",
        "FedMedian over groups",
        "Section non_sum_based",
        median_of_groups,
        data=LARGER,
    ),
    Experiment("accuracy-int8", "One byte for a parameter", "Section on LLMs, int8", one_byte, RUNS, LARGER),
    Experiment("accuracy-noise", "Noise in the sum", "beyond the paper", central_noise),
)
"""What `silomix reproduce` lists under accuracy."""
