"""What the dashboard shows: panels with their queries, for Grafana (runtime/dashboard/grafana.py) and for a picture
(runtime/dashboard/query.py) alike.

`$job` is the scrape job, one for each federation; `$__rate_interval` is Grafana's word for a window that is sure to
hold several scrapes. Series carry no node's name of their own: it is joined from `silomix_node_info`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

TITLE = "silomix"
COLUMNS = 24
"""Width of Grafana's grid."""
VANILLA_BITS = 32
"""What ordinary federated learning sends for a parameter: one float32."""

GOOD, FAIR, BAD = "green", "orange", "red"
"""Colours that mean something. Grafana and matplotlib both know them by these names."""


class PanelKind(StrEnum):
    """How a panel draws what its queries return."""

    LINES = "lines"
    BARS = "bars"
    """Stacked: each stands for what happened in its stretch of time."""
    STAT = "stat"
    """The newest value in large type."""
    GAUGE = "gauge"
    """The newest value of each series as a bar."""
    STATES = "states"
    """A band for each series whose colour says the state."""


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and what its series are called: {{label}} stands for a label's value."""

    expr: str
    legend: str
    reference: bool = False
    """Whether it is only there to compare with."""
    colour: str = ""
    """One that means something, or whichever comes next."""


@dataclass(frozen=True)
class Panel:
    """One panel: a question in its title, how to read the answer in `what`, and the queries that answer it."""

    title: str
    what: str
    kind: PanelKind
    queries: tuple[Query, ...]
    unit: str = "none"
    """Grafana's name of the unit."""
    width: int = 12
    height: int = 8
    decimals: int | None = None
    steps: tuple[tuple[float | None, str], ...] = ()
    """Colours by value, each from this value on; None for the first."""
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """What a value stands for, and its colour."""
    sparse: bool = False
    """Whether values come only now and then, so that lines are drawn across the time between them."""
    empty: str = "no data yet"
    """What to say when the queries return nothing."""


@dataclass(frozen=True)
class GridPlace:
    """Where a panel stands on the grid, in columns and rows."""

    x: int
    y: int
    panel: Panel


def _named(series: str, role: str, *labels: str) -> str:
    """Add the node's name, and whatever else of `silomix_node_info` is asked for, to series of nodes of a role."""
    info = f'silomix_node_info{{job="$job", role=~"{role}"}}'
    return f"{series} * on (job, instance) group_left ({', '.join(labels or ('node',))}) {info}"


def _mean(histogram: str, by: str, role: str, where: str = "") -> str:
    """The mean of what a histogram saw lately; nothing, and not NaN, where it saw nothing."""

    def rate(part: str) -> str:
        series = f'rate(silomix_{histogram}_{part}{{job="$job"{where}}}[$__rate_interval])'
        return f"sum by ({by}) ({_named(series, role, 'role')})"

    return f"{rate('sum')} / {rate('count')} >= 0"


def _rate(direction: str, role: str, by: str = "node") -> str:
    series = f'rate(silomix_bytes_total{{job="$job", direction=~"{direction}"}}[$__rate_interval])'
    return f"sum by ({by}) ({_named(series, role)})"


SENT_BITS = '8 * max by (job) (silomix_bytes_per_parameter{job="$job", direction="sent"})'
PLAN_BITS = '8 * max by (job) (silomix_plan_bytes_per_parameter{job="$job"})'
# NaN without TLS, and nothing but NaN fails to be above minus infinity.
DAYS_LEFT = '(silomix_certificate_expiry_timestamp_seconds{job="$job"} - time()) / 86400'

PANELS: tuple[Panel, ...] = (
    Panel(
        "Round",
        "The round under way, and how many there are to be.",
        PanelKind.STAT,
        (
            Query('max by (job) (silomix_round{job="$job"})', "under way"),
            Query('max by (job) (silomix_policy_rounds{job="$job"})', "of"),
        ),
        width=4,
        height=4,
        decimals=0,
    ),
    Panel(
        "Bits per parameter and silo",
        "What one silo sent for a parameter, framing included. Unprotected it is 32.",
        PanelKind.STAT,
        (Query(SENT_BITS, "sent"), Query(PLAN_BITS, "plan")),
        width=5,
        height=4,
        decimals=2,
    ),
    Panel(
        "Round takes",
        "From a round's first announcement to the new model, all attempts included: the mean of the last rounds.",
        PanelKind.STAT,
        (Query(_mean("round_seconds", "job", "aggregator"), "mean"),),
        unit="s",
        width=4,
        height=4,
        decimals=2,
    ),
    Panel(
        "Model accuracy",
        "As the evaluator beside the aggregator measured it, if there is one.",
        PanelKind.STAT,
        (Query('max by (job) (silomix_model_accuracy{job="$job"}) >= 0', "accuracy"),),
        unit="percentunit",
        width=4,
        height=4,
        decimals=1,
        empty="no evaluator",
    ),
    Panel(
        "Hops unreachable",
        "As the aggregator sees the chain. A round needs every hop.",
        PanelKind.STAT,
        (Query('sum by (job) (silomix_hop_state{job="$job", state="unreachable"})', "hops"),),
        width=3,
        height=4,
        decimals=0,
        steps=((None, GOOD), (1, BAD)),
    ),
    Panel(
        "First certificate expires in",
        "The certificate that runs out first, of all nodes.",
        PanelKind.STAT,
        (Query(f"min by (job) ({DAYS_LEFT}) > -Inf", "days"),),
        unit="d",
        width=4,
        height=4,
        decimals=0,
        steps=((None, BAD), (14, FAIR), (30, GOOD)),
        empty="no TLS",
    ),
    Panel(
        "Bits per parameter, against the plan and vanilla's 32",
        "What a silo sends should lie a hair above the plan: headers and signatures. What arrives at the aggregator "
        "has the headers of all silos in it. Small models show more of either.",
        PanelKind.LINES,
        (
            Query(SENT_BITS, "sent by a silo (most)"),
            Query(
                "8 * max by (job) ("
                + _named('silomix_bytes_per_parameter{job="$job", direction="received"}', "aggregator")
                + ")",
                "arrived at the aggregator",
            ),
            Query(PLAN_BITS, "plan", reference=True),
            Query(f"vector({VANILLA_BITS})", "vanilla", reference=True),
        ),
        unit="none",
        decimals=2,
    ),
    Panel(
        "Round latency by phase, at the aggregator",
        "Stacked, the phases are the round: hops make keys (prepare), silos train and upload (collect), the padded sum "
        "passes the chain (release), hops sign for it (ready) and show their pads (reveal), the next model is made "
        "(apply), and hops store the record (record).",
        PanelKind.BARS,
        tuple(
            Query(_mean("round_phase_seconds", "phase", "aggregator", f', phase="{phase}"'), phase)
            for phase in ("prepare", "collect", "release", "ready", "reveal", "apply", "record")
        ),
        unit="s",
    ),
    Panel(
        "Bytes sent, by silo",
        "Serialised messages, without TLS and TCP. A silo that sends much more than the others sends bodies again.",
        PanelKind.LINES,
        (Query(_rate("sent", "silo"), "{{node}}"),),
        unit="Bps",
    ),
    Panel(
        "Bytes in and out, by hop",
        "Hop 1 takes in the bodies of all silos; every later hop takes in, and each hop sends, one sum.",
        PanelKind.LINES,
        (Query(_rate("received|sent", "shuffler|aggregator", "node, direction"), "{{node}} {{direction}}"),),
        unit="Bps",
    ),
    Panel(
        "Phases at silos and hops",
        "The mean over all nodes of a role: silos train, encode and upload, hops collect and release.",
        PanelKind.LINES,
        (Query(_mean("round_phase_seconds", "role, phase", "silo|shuffler"), "{{role}} {{phase}}"),),
        unit="s",
        sparse=True,
    ),
    Panel(
        "Cohort",
        "Each silo hides among the cohort. Below the minimum nothing is released.",
        PanelKind.LINES,
        (
            Query('max by (job) (silomix_cohort_size{job="$job"})', "in the last sum"),
            Query('max by (job) (silomix_silos_present{job="$job"})', "present"),
            Query('max by (job) (silomix_invited_silos{job="$job"})', "invited", reference=True),
            Query('max by (job) (silomix_minimum_cohort{job="$job"})', "minimum", reference=True),
        ),
        decimals=0,
    ),
    Panel(
        "Refused, by reason",
        "What any node refused. bad_signature, root_mismatch, seal_broken and out_of_range are never normal; "
        "docs/monitoring.md has the others.",
        PanelKind.BARS,
        (
            Query(
                'sum by (reason) (increase(silomix_rejections_total{job="$job"}[$__rate_interval])) > 0', "{{reason}}"
            ),
        ),
        decimals=0,
        empty="nothing was refused",
    ),
    Panel(
        "Attempts, by outcome",
        "applied made a model; aborted is tried again; abandoned gave the round up.",
        PanelKind.BARS,
        tuple(
            Query(
                f'sum by (job) (increase(silomix_attempts_total{{job="$job", outcome="{outcome}"}}[$__rate_interval]))',
                outcome,
                colour=colour,
            )
            for outcome, colour in (("applied", GOOD), ("aborted", FAIR), ("abandoned", BAD))
        ),
        decimals=0,
    ),
    Panel(
        "State of each hop",
        "As the aggregator sees it: ready has made its keys, open takes part in the attempt.",
        PanelKind.STATES,
        (
            Query(
                'sum by (hop) (silomix_hop_state{job="$job", state="ready"})'
                ' + 2 * sum by (hop) (silomix_hop_state{job="$job", state="open"})',
                "{{hop}}",
            ),
        ),
        states={0: ("unreachable", BAD), 1: ("ready", "blue"), 2: ("open", GOOD)},
    ),
    Panel(
        "Days until each certificate expires",
        "A node whose certificate has run out takes part in nothing.",
        PanelKind.GAUGE,
        (Query(f"{_named(DAYS_LEFT, '.+')} > -Inf", "{{node}}"),),
        unit="d",
        decimals=0,
        steps=((None, BAD), (14, FAIR), (30, GOOD)),
        empty="no TLS",
    ),
    Panel(
        "Memory, by node",
        "Resident memory. At a hop it grows with the model and not with the number of silos.",
        PanelKind.LINES,
        (Query(_named('process_resident_memory_bytes{job="$job"}', ".+"), "{{node}}"),),
        unit="decbytes",
    ),
    Panel(
        "Room on the disk, by node",
        "What is left where a node keeps its state. A node without any holds rounds up until there is room again.",
        PanelKind.LINES,
        (
            Query(
                _named('silomix_disk_free_bytes{job="$job"} / silomix_disk_size_bytes{job="$job"}', ".+"),
                "{{node}}",
            ),
        ),
        unit="percentunit",
    ),
    Panel(
        "Processor, by node",
        "Cores in use: training at silos, masks at hops.",
        PanelKind.LINES,
        (Query(_named('rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])', ".+"), "{{node}}"),),
        unit="none",
        decimals=2,
    ),
)


def places(panels: tuple[Panel, ...] = PANELS) -> Iterator[GridPlace]:
    """Put panels on the grid: from left to right, in rows as high as their highest."""
    x = y = row = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, row = 0, y + row, 0
        yield GridPlace(x, y, panel)
        x, row = x + panel.width, max(row, panel.height)
