"""The audit as one HTML page, which needs no network: the verdict on top, then what it rests on.

The templates are files beside this one, and everything that goes into them is escaped: a task may be named anything.
"""

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from silomix.attacks.audit import charts, subject
from silomix.attacks.audit.attack import Attack, Bars, Block, Heat, Pictures, Section
from silomix.attacks.audit.verdict import Json
from silomix.models.simulation.experiment import Plot, Table

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


def sections(report: Json, attacks: Sequence[Attack]) -> dict[str, Section]:
    """Return the parts of a report by name: what is trained, and a section for each attack that was mounted."""
    mounted = {one.name: one.section(report) for one in attacks if one.name in report["attacks"]}
    return {"subject": subject.section(report["subject"]), **mounted}


def page(report: Json, attacks: Sequence[Attack]) -> str:
    """Turn an audit's JSON into a page."""
    word, _, rest = report["verdict"]["text"].partition(". ")
    verdict = report["verdict"]
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            word=word,
            rest=rest,
            tone="exposed" if verdict["leak"] else "protected" if verdict["protected"] else "open",
            sections=list(sections(report, attacks).values()),
            assumed=[" ".join(point.split()) for point in ASSUMED],
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("silomix.attacks.audit"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["a"] = _is
    made.globals |= {"bars": charts.bars, "curves": charts.curves, "heat": charts.heat}
    return made


_KINDS: dict[str, type] = {"table": Table, "plot": Plot, "bars": Bars, "heat": Heat, "pictures": Pictures, "text": str}


def _is(block: Block, kind: str) -> bool:
    return isinstance(block, _KINDS[kind])
