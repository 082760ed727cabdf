"""The audit as one HTML page, which needs no network: the verdict on top, then what it rests on."""

from collections.abc import Sequence
from html import escape

from silomix.attacks.audit.jobs import Json
from silomix.attacks.audit.page import page_of, scrolling, section, table
from silomix.attacks.audit.svg import COLOURS, Bar, Curve, bars, curves
from silomix.attacks.prior import CLASSES, INVENTED
from silomix.attacks.views.view import CONTROLS, EXPOSED, Mode

RED, GREEN, GREY, AMBER = "#b3261e", "#1b6e3c", "#5a6472", "#8a5a00"

ASSUMED = (
    """The adversary is the aggregator, honest but curious, with all that it receives; where said, hops or silos are on
    its side.""",
    """It knows that each record was trained on, and asks by whom (Hu et al.): the silo whose local model has the least
    loss. The same number of records of each silo is asked about.""",
    "Equal losses are broken by a fair die. Where all estimates are equal, that is every guess.",
    """Against shuffling it holds a shadow set of every silo, 5% of its records, none of which was trained on, and
    remaps as the paper's R_M, R_L and R_P do. The guess is then among the remapped models.""",
    """Best round: the round with the most right guesses, as in the paper. It flatters the attack a little, so the last
    round stands beside it. Intervals are Wilson's at 99.9%.""",
)


def page(report: Json) -> str:
    """Turn an audit's JSON into a page."""
    verdict = report["verdict"]
    colour = RED if verdict["leak"] else GREEN if verdict["protected"] else AMBER
    whole = "sia" in report
    parts = [_head(report)]
    if whole:
        parts += [_by_mode(report), _beside(report), _by_alpha(report)]
    parts.append(_real(report["real"]))
    if whole:
        parts += [_game(report["game"]), _limits(report), _pictures(report["dlg"]), _bits(report)]
    parts += [_assumed(), _again(report)]
    return page_of("silomix audit", colour, parts)


def _head(report: Json) -> str:
    word, _, rest = report["verdict"]["text"].partition(". ")
    found = "".join(f"<li>{escape(text)}</li>" for text in report["verdict"]["findings"])
    setting = report["setting"]
    size = ""
    if "sia" in report:
        targets = report["sia"]["semi-honest"]["targets"]
        size = f"{setting['silos']} silos, {targets:,} records, seeds {', '.join(map(str, setting['seeds']))}. "
    return (
        "<h1>Can the server tell whose record it is?</h1>"
        f'<p class="small">silomix audit, {escape(setting["date"])}. {size}{escape(setting.get("data", ""))}</p>'
        f'<div class="verdict"><b>{escape(word)}.</b> {escape(rest)}{f"<ul>{found}</ul>" if found else ""}</div>'
    )


def _by_mode(report: Json) -> str:
    random = report["random"]

    def bar(mode: Mode) -> Bar:
        score = report["sia"][str(mode)]
        colour = RED if mode in EXPOSED else GREY if mode in CONTROLS else GREEN
        return Bar(str(mode), score["accuracy"], score["low"], score["high"], colour)

    rows = [
        (f"{mode}\n{report['meanings'][mode]}", _share(score), _share(score["last"]), _share(score["together"]))
        for mode, score in report["sia"].items()
    ]
    return section(
        "Source inference by mode",
        "How often the guess names the right silo, best round, with 99.9% intervals. Red: modes that do not protect. "
        "Green: modes that should. Grey: controls, the same attack with one assumption taken away: it must succeed "
        "there, or its failure elsewhere would prove nothing.",
        scrolling(bars([bar(mode) for mode in Mode], random, f"random guess {random:.0%}")),
        table(("mode", "best round", "last round", "all rounds"), rows, 1),
    )


def _beside(report: Json) -> str:
    classes, invented = report["baselines"][CLASSES], report["baselines"][INVENTED]
    return section(
        "What the adversary knew before",
        "Undoing a shuffle takes a shadow set of every silo: a few records like its own. Whoever has those can guess "
        f"by a record's class alone, without any traffic, and is right {_percent(classes['last'])}. No protocol can "
        "take that away. Picking each value of the last layer among invented ones, round the joint model, instead of "
        f"among captured ones is right {_percent(invented)} in the best round; among captured ones, "
        f"{_percent(report['sia']['parameter'])}.",
    )


def _by_alpha(report: Json) -> str:
    points = report["by_alpha"]
    names = list(points[0]["sia"])
    lines = []
    for i, name in enumerate(names):
        scores = [(one["alpha"], one["sia"][name]) for one in points]
        spots = [(alpha, s["accuracy"], s["low"], s["high"]) for alpha, s in scores]
        lines.append(Curve(name, spots, COLOURS[i % len(COLOURS)]))
    rows = [
        (f"{one['alpha']:g}", *(_share(one["sia"][name]) for name in names), f"{one['accuracy']:.1%}") for one in points
    ]
    return section(
        "By heterogeneity",
        "Classes are dealt out to silos by Dirichlet(alpha). Best round; bands are 99.9% intervals.",
        scrolling(curves(lines, report["random"], "random guess", "alpha: the smaller, the more the silos differ")),
        table(("alpha", *names, "model accuracy"), rows, 0),
    )


def _real(judged: Sequence[Json]) -> str:
    keys = ("captured", "unprotected", "all_but_one", "all_collude")
    rows = [
        (
            f"{one['granularity']}, {one['level']}\n{one['silos']} silos, {one['hops']} hops",
            *(_share(one[key]["last"]) if one[key] else "-" for key in keys),
            "-" if one["bits_per_parameter"] is None else f"{one['bits_per_parameter']:.2f}",
        )
        for one in judged
    ]
    return section(
        "From captured traffic",
        "Federations that ran over gRPC with mutual TLS and recorded what they saw. The attack reads the aggregator's "
        "capture; then hop 1's, with the round keys of all hops but one, and of every hop. Last round; bits as a silo "
        "counted them on the wire.",
        table(("federation", "aggregator", "unprotected", "all hops but one", "every hop", "bits/parameter"), rows, 1),
    )


def _game(games: Sequence[Json]) -> str:
    rows = [
        (str(g["silos"]), str(g["values"]), *(_advantage(g[kind]) for kind in ("unreduced", "reduced"))) for g in games
    ]
    return section(
        "Sums of residues that are not reduced",
        "A game: which of two known models does silo 1 hold, when both make the same sum? The paper's Alg. 1 shows the "
        "server sums of residues un-reduced; silomix reduces them before they leave the chain. The advantage is how "
        "much more often the guess is right than wrong: 0 is a coin, 1 is certainty.",
        table(("silos", "parameters", "un-reduced (paper)", "reduced (silomix)"), rows, 0),
    )


def _limits(report: Json) -> str:
    rows = [
        (str(one["colluding"]), str(one["honest"]), f"{1 / one['honest']:.1%}", _share(one), f"{one['error']:.0%}")
        for one in report["collusion"]
    ]
    changing = report["changing_cohorts"]
    after = (
        f"And if only {changing['subsample']:.0%} of the silos are invited to each round, cohorts change, and sums "
        f"over different silos can be compared. After {changing['rounds']} rounds the adversary is right "
        f"{_percent(changing['taken apart'])}, where a random guess is right {changing['random']:.0%}. Keep the cohort "
        "constant, or add noise (docs/threat-model.md)."
    )
    return section(
        "Limits of a sum",
        "Silos that collude with the aggregator hand it their own models, and it takes them off the sum. The others "
        "stay hidden among themselves: with two left a guess is one in two, and the last one stands alone. The error "
        "is how far off the best estimate of an honest silo's update is, in parts of that update.",
        table(("colluding", "honest", "random guess", "right guesses", "error"), rows, 0),
        f"<p>{escape(after)}</p>",
    )


def _pictures(found: Sequence[Json]) -> str:
    rows = [
        (str(f["silos"]), str(f["records"]), str(f["looked_for"]), f"{f['loss']:.2g}", f"{f['chance']:.2g}")
        for f in found
    ]
    pictures = "".join(_picture(one) for one in found)
    return section(
        "Pictures from updates (DLG)",
        "Each silo takes one step on its records; the attack looks for pictures whose gradient is the mean of the "
        "silos'. Above, what was trained on; below, what was found. The loss is the mean squared error per pixel; "
        "beside it, that of unrelated pictures of the same kind. A sum hides whose a record is. It hides the record "
        "itself only behind many others: an adversary that looks for as many pictures as there are records can find a "
        "few of them in a sum, so silos should not train on a handful.",
        scrolling(pictures),
        table(("silos", "records", "looked for", "loss", "unrelated"), rows, 0),
    )


def _picture(one: Json) -> str:
    silos, records = one["silos"], one["records"]
    title = f"{silos} silo{'s' * (silos > 1)}, {records} record{'s' * (records > 1)}, looking for {one['looked_for']}"
    return (
        f'<div class="pair"><div class="small">{title}</div>'
        f'<img alt="above, what was trained on; below, what the attack found" src="{escape(one["picture"])}"></div>'
    )


def _bits(report: Json) -> str:
    rows = [(mode, f"{bits}", f"{bits / 32:.2f}x") for mode, bits in report["bits"].items()]
    setting = report["setting"]
    return section(
        "Bits per parameter",
        f"What a silo sends for each parameter, framing aside, with {setting['silos']} silos and r = "
        f"{setting['precision']}.",
        table(("mode", "bits", "of float32"), rows, 1),
    )


def _assumed() -> str:
    points = "".join(f"<li>{escape(' '.join(point.split()))}</li>" for point in ASSUMED)
    return f"<h2>What was assumed</h2><ul>{points}</ul>"


def _again(report: Json) -> str:
    setting = report["setting"]
    took = f", which took {report['seconds']:.0f} s" if "seconds" in report else ""
    machine = f" on {escape(setting['machine'])}" if "machine" in setting else ""
    return (
        f"<h2>To do it again</h2><p><code>{escape(setting['command'])}</code>{took}{machine}. "
        "<code>--json</code> has every number of this page. docs/attacks.md defines each attack.</p>"
    )


def _share(score: Json) -> str:
    return f"{score['accuracy']:.1%}\n{score['low'] * 100:.1f}-{score['high'] * 100:.1f}"


def _percent(score: Json) -> str:
    return f"{score['accuracy']:.1%} of the time ({score['low']:.1%} to {score['high']:.1%})"


def _advantage(found: Json) -> str:
    return f"{found['advantage']:.2f}\n{found['low']:.2f} to {found['high']:.2f}"
