"""The look of a report: one page without scripts, for a screen, a telephone and paper."""

from collections.abc import Sequence
from html import escape
from string import Template

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 60rem; color: #1c2430; background: #fff;
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.small { color: #5a6472; font-size: .875rem; }
.verdict { border-left: .5rem solid $colour; background: #f5f7fa; padding: .8rem 1rem; margin: 1rem 0;
  font-size: 1.05rem; }
.verdict b:first-child { color: $colour; }
.wide { overflow-x: auto; }
svg { width: 100%; max-width: 38rem; height: auto; display: block; font: 13px system-ui, sans-serif; }
svg .grid { stroke: #e2e6ec; }
svg .error { stroke: #1c2430; stroke-width: 1.4; }
svg .tick { fill: #5a6472; font-size: 12px; }
svg .level { stroke: #1c2430; stroke-dasharray: 4 3; }
svg .value { font-weight: 600; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 60%; }
th, td { padding: .28rem .7rem .28rem 0; text-align: left; border-bottom: 1px solid #e2e6ec; vertical-align: top; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; }
td small { display: block; color: #5a6472; font-size: .8em; line-height: 1.3; }
img { image-rendering: pixelated; max-width: 100%; height: auto; display: block; margin: .2rem 0; }
.pair { display: inline-block; margin: .3rem 1.2rem .6rem 0; vertical-align: top; max-width: 100%; }
code { background: #f0f2f5; padding: .05rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
li { margin: .2rem 0; max-width: 46rem; }
@media (max-width: 34rem) {
  body { padding: .8rem; font-size: 15px; }
  table { font-size: .82rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2 { break-after: avoid; }
  svg, table, .pair, .verdict { break-inside: avoid; }
  .verdict, code { background: none; }
  .wide { overflow: visible; }
}
</style></head><body>
$body
</body></html>
""")


def page_of(title: str, colour: str, parts: Sequence[str]) -> str:
    """Put parts into a page; the colour is the verdict's."""
    return PAGE.substitute(title=escape(title), colour=colour, body="\n".join(parts))


def section(title: str, text: str, *more: str) -> str:
    """Make a section: a heading, a paragraph of plain text, and whatever follows."""
    return f"<h2>{escape(title)}</h2><p>{escape(text)}</p>" + "".join(more)


def scrolling(content: str) -> str:
    """Let what is too wide for a telephone be scrolled by itself."""
    return f'<div class="wide">{content}</div>'


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int) -> str:
    """Make a table; columns from a number on are figures. What follows a line break in a cell stands small below."""

    def cell(tag: str, i: int, text: str) -> str:
        kind = ' class="n"' if i >= numbers_from else ""
        first, _, more = text.partition("\n")
        return f"<{tag}{kind}>{escape(first)}{f'<small>{escape(more)}</small>' if more else ''}</{tag}>"

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, i, text) for i, text in enumerate(cells)) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return scrolling(f"<table><thead>{row('th', columns)}</thead><tbody>{body}</tbody></table>")
