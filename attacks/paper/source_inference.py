"""The paper's experiments on source inference, repeated: by skew, silos, epochs, rule, model, and shadow set.

`silomix reproduce` runs them.
"""

from dataclasses import replace
from functools import partial

from silomix.attacks.audit.campaign import Campaign, options_of
from silomix.attacks.paper.accuracy_trials import LARGER
from silomix.attacks.paper.defences import Defence, defences
from silomix.attacks.paper.trials import FIGURE, MODES, Trials, listed, percent, swept
from silomix.attacks.views.view import Mode
from silomix.models.simulation.experiment import Cell, Experiment, Progress, Result, Scale, Table
from silomix.runtime.core.numbers.plan import Quantiser

PAPER_ALPHA = {
    "mnist": {"0.1": "none 45.01"},
    "cifar10": {"0.1": "none 51.57, model 45, layer 42, parameter 27 to 28, Alg. 1 10"},
    "digits": {"0.1": "MNIST: none 45.01; CIFAR-10: none 51.57, model 45, layer 42, parameter 27; Alg. 1 10"},
}
"""What the text and the tables say about figure exp:rec; the figure itself has no numbers."""


def by_alpha(scale: Scale, progress: Progress) -> Result:
    """Source inference by the skew of the silos."""
    alphas = (0.1, 1.0, 10.0) if scale.name == "quick" else (0.1, 0.3, 1.0, 10.0)
    trials = Trials(scale, progress, len(alphas))
    points = [(f"{alpha:g}", alpha, trials.base(alpha=alpha)) for alpha in alphas]
    printed = PAPER_ALPHA.get(trials.data, {})
    title = f"Source inference by alpha on {trials.data}"
    return swept(trials, title, "alpha", points, printed, level=0.1, level_name="random guess", log_x=True)


def by_silos(scale: Scale, progress: Progress) -> Result:
    """Source inference by the number of silos."""
    counts = (5, 10, 20) if scale.name == "quick" else (3, 5, 10, 20, 30)
    trials = Trials(scale, progress, len(counts), redraw=False)
    points = [(str(n), float(n), trials.base(silos=n)) for n in counts]
    result = swept(trials, f"Source inference by the number of silos on {trials.data}", "silos", points, {})
    random = ", ".join(f"{n}: {100 / n:.1f}" for n in counts)
    note = f"A random guess is right, in percent: {random}. Silos with fewer than 10 records are not asked about."
    return replace(result, notes=(trials.about(""), note, FIGURE))


def by_epochs(scale: Scale, progress: Progress) -> Result:
    """Source inference by local epochs."""
    counts = (1, 5, 10)
    trials = Trials(scale, progress, len(counts))
    points = [(str(e), float(e), trials.base(epochs=e)) for e in counts]
    title = f"Source inference by local epochs on {trials.data}"
    return swept(trials, title, "epochs", points, {}, level=0.1, level_name="random guess")


def by_rule(scale: Scale, progress: Progress) -> Result:
    """Source inference under FedAvg, FedProx and FedSGD."""
    trials = Trials(scale, progress, 3)
    base = trials.base()
    rules: dict[str, Campaign] = {
        "FedAvg": base,
        "FedProx, mu = 0.1": replace(base, policy=options_of(base.policy, mu=0.1)),
        "FedSGD": replace(base, policy=options_of(base.policy, algorithm="fedsgd", lr=0.2, momentum=0.0)),
    }
    return listed(trials, f"Source inference under other rules on {trials.data}", "rule", rules, {})


def on_data(scale: Scale, progress: Progress, *, data: str, printed: str) -> Result:
    """Source inference on one other kind of data."""
    trials = Trials(scale, progress, 1, data=data)
    return listed(trials, f"Source inference on {data}", "data", {data: trials.base()}, {data: printed})


NOISE_PRINTED = {
    "clean": "model 45, layer 42, parameter 27, Alg. 1 10",
    "rotate-30": "model 40.6, layer 33, parameter 24.1, Alg. 1 10",
    "flip-horizontal": "model 32, layer 27.3, parameter 21.7, Alg. 1 10",
    "flip-vertical": "model 26, layer 25, parameter 19.3, Alg. 1 10",
    "colour-0.2": "model 31.9, layer 39, parameter 19, Alg. 1 10",
    "colour-0.4": "model 22, layer 18, parameter 14, Alg. 1 10",
    "colour-0.6": "model 18, layer 16, parameter 12, Alg. 1 10",
}
"""Tables table:sia_geom_noise and table:sia_color_noise, on CIFAR-10."""


def noisy_shadow(scale: Scale, progress: Progress, *, kinds: tuple[str, ...]) -> Result:
    """Remapping with shadow sets that are only about right."""
    trials = Trials(scale, progress, len(kinds))
    campaigns = {kind: replace(trials.base(), noise=kind) for kind in kinds}
    note = "The paper's numbers are on CIFAR-10. Noise touches the remapping only: unprotected and sums do not use it."
    title = f"Source inference with noisy shadow sets on {trials.data}"
    return listed(trials, title, "noise", campaigns, NOISE_PRINTED, note)


SIZE_PRINTED = {
    "0.5%": "none 51.57, model 21.2, layer 20.24, parameter 16.2, Alg. 1 10",
    "1%": "none 51.57, model 25.4, layer 23.5, parameter 19.1, Alg. 1 10",
    "5%": "none 51.57, model 45, layer 42, parameter 27, Alg. 1 10",
}
"""Table table:acc_smaller_db, on CIFAR-10; the row of 5% is from the tables on noise."""


def small_shadow(scale: Scale, progress: Progress) -> Result:
    """Remapping with smaller shadow sets."""
    sizes = {"0.5%": 0.005, "1%": 0.01, "5%": 0.05}
    trials = Trials(scale, progress, len(sizes))
    campaigns = {name: replace(trials.base(), fraction=size) for name, size in sizes.items()}
    note = "On digits 0.5% is one record of each silo: a shadow set has at least one. The paper's are on CIFAR-10."
    title = f"Source inference by the size of the shadow set on {trials.data}"
    return listed(trials, title, "shadow set", campaigns, SIZE_PRINTED, note)


def other_defences(scale: Scale, progress: Progress, *, names: tuple[str, ...], what: str) -> Result:
    """Defences that do not hide which model is whose, on the unprotected updates."""
    chosen = [one for one in defences(scale.rounds) if one.name in names]
    trials = Trials(scale, progress, len(chosen), data="digits")
    rows: list[tuple[Cell, ...]] = []
    for one in chosen:
        name = f"{one.name} {one.strength}".strip()
        found = trials.run(name, one.applied(trials.base(modes=(Mode.NONE,))))[Mode.NONE]
        rows.append((one.name, one.strength, f"{trials.accuracy(name) * 100:.1f}", percent(found), *_paper(one)))
    columns = ("defence", "strength", "model accuracy", "SIA, best round", "paper, model", "paper, SIA")
    note = (
        "The paper's numbers are on MNIST. Its weight decay of 0.3 to 0.5 is not SGD's (0.1 of it ruins the model "
        "here), so those rows have none of its numbers. Pictures are blended with those of the test set, and signs not "
        "flipped."
    )
    return Result((Table(what, columns, tuple(rows)),), (), (trials.about(), note), trials.values())


def _paper(one: Defence) -> tuple[Cell, Cell]:
    return (None, None) if one.paper_mnist is None else one.paper_mnist


def with_dp(scale: Scale, progress: Progress) -> Result:
    """DP-SGD beside the protected sum."""
    trials = Trials(scale, progress, 3)
    campaigns = {"no DP": trials.base()}
    for epsilon in (5.0, 1.0):
        base = trials.base(dp_epsilon=epsilon, dp_rounds=scale.rounds, dp_seeded=True, momentum=0.0)
        campaigns[f"epsilon = {epsilon:g}"] = base
    printed = {"epsilon = 1": "Alg. 1 10 (any epsilon)"}
    note = "Epsilon is for each record, over all rounds, at delta 1e-5. DP alone does not hide the source: mode none."
    return listed(trials, f"Source inference with DP-SGD on {trials.data}", "DP-SGD", campaigns, printed, note)


def with_int8(scale: Scale, progress: Progress) -> Result:
    """One byte for a parameter."""
    trials = Trials(scale, progress, 2)
    base = trials.base(modes=(*MODES, Mode.ALL_COLLUDE))
    campaigns = {"r = 4": base, "int8": replace(base, policy=replace(base.policy, quantiser=Quantiser.INT8))}
    printed = {"int8": "none 69.8, Alg. 1 10 (BERT)"}
    title = f"Source inference with int8 on {trials.data}"
    note = "The quantiser shapes the joint model, and with it what silos train from; a sum stays a sum."
    return listed(trials, title, "quantiser", campaigns, printed, note)


SIA_EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("sia-by-alpha", "Source inference by skew", "Figure exp:rec", by_alpha, data=LARGER),
    Experiment(
        "sia-by-silos",
        "Source inference by the number of silos",
        "Figure exp:rec_with_number_of_clients",
        by_silos,
        data=LARGER,
    ),
    Experiment("sia-by-epochs", "Source inference by local epochs", "Figure fig:le", by_epochs, data=LARGER),
    Experiment(
        "sia-by-rule",
        "Source inference under FedProx and FedSGD",
        "Figure app:exp_more_agg_func",
        by_rule,
        data=LARGER,
    ),
    Experiment(
        "sia-synthetic",
        "Source inference on the synthetic table, MLP",
        "Table tab:sia_defense_results",
        partial(on_data, data="synthetic", printed="none 46.2, model 39.3, layer 37, parameter 21.1, Alg. 1 10"),
    ),
    Experiment(
        "sia-har",
        "Source inference on UCI HAR",
        "Table tab:different_model",
        partial(on_data, data="har", printed="none 55.6, Alg. 1 10"),
        "needs har: its files in the data directory",
    ),
    Experiment(
        "sia-newsgroups",
        "Source inference on 20 Newsgroups",
        "Table tab:different_model",
        partial(on_data, data="newsgroups", printed="none 69.8, Alg. 1 10 (DistilBERT)"),
        "needs newsgroups: `silomix data get newsgroups`",
    ),
    Experiment(
        "shadow-geometric",
        "Shadow sets under rotation and flips",
        "Table table:sia_geom_noise",
        partial(noisy_shadow, kinds=("clean", "rotate-30", "flip-horizontal", "flip-vertical")),
        data=LARGER,
    ),
    Experiment(
        "shadow-colour",
        "Shadow sets under noise of colour",
        "Table table:sia_color_noise",
        partial(noisy_shadow, kinds=("clean", "colour-0.2", "colour-0.4", "colour-0.6")),
        data=LARGER,
    ),
    Experiment("shadow-size", "Smaller shadow sets", "Table table:acc_smaller_db", small_shadow, data=LARGER),
    Experiment(
        "defences-regularisation",
        "Cropping, dropout and weight decay",
        "Table tbl:regul-def",
        partial(
            other_defences,
            names=("none", "random cropping", "dropout", "weight decay"),
            what="Regularisation as a defence, on digits",
        ),
    ),
    Experiment(
        "defences-instahide",
        "InstaHide",
        "Table tbl:instahide_acc",
        partial(other_defences, names=("none", "InstaHide"), what="InstaHide-style blending as a defence, on digits"),
    ),
    Experiment("sia-dp", "Source inference with DP-SGD", "Section app:synergyDP", with_dp, data=LARGER),
    Experiment(
        "sia-int8", "Source inference with int8", "Section app_diff_complex_models, int8", with_int8, data=LARGER
    ),
)
