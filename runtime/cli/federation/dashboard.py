"""The command `dashboard`: the panels of the Grafana dashboard as a picture, without a Grafana."""

import argparse
from collections.abc import Callable
from pathlib import Path

from silomix.runtime.cli.options import Commands

EPILOG = """\
The panels and queries are those of the Grafana dashboard in deploy/grafana.

examples:
  silomix dashboard --out federation.png
  silomix dashboard --out federation.svg --prometheus http://monitor.example.org:9090 --job hospitals --last 6h
  silomix dashboard --json | jq '.panels[] | {title, series: [.series[].name]}'
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser. What it needs is imported when it runs."""
    cmd = commands.add_parser(
        "dashboard",
        help="draw the federation's dashboard as a picture, from Prometheus",
        description="Ask a Prometheus what the Grafana dashboard asks, and draw the answers: no Grafana is needed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cmd.add_argument("--out", type=Path, metavar="FILE", help="picture to write: .png, .svg or .pdf")
    cmd.add_argument(
        "--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="its address (default: %(default)s)"
    )
    cmd.add_argument("--job", help="scrape job of the federation (default: the only one that is there)")
    cmd.add_argument("--last", default="1h", metavar="TIME", help="how far back: 30m, 6h, 2d (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_dashboard, fail=cmd.error)


def _dashboard(args: argparse.Namespace) -> int:
    from silomix.runtime.dashboard.query import duration, show

    if args.out is None and not args.json:
        args.fail("give --out with the picture's name, or --json")
    return show(args.out, args.prometheus, args.job, duration(args.last), as_json=args.json)
