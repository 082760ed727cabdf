"""docs/operations.md says what is so: policy, ports, capacity, paths and anchors, against the code."""

import re
from pathlib import Path

import pytest
import yaml
from tests.render.rendered import source

from silomix.runtime.cli import main
from silomix.runtime.core.policy import KEYS
from silomix.runtime.net.edges import edges
from silomix.runtime.render.capacity import CHUNK_BYTES, COSTS, HEADER_BYTES, SEED_BYTES, Load, Place, needs

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs" / "operations.md"
TEXT = OPERATIONS.read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title}"
    return found[1]


def table(text: str, first: str) -> list[list[str]]:
    """The rows below the table's head, whose first cell is given."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_the_policy_says_what_the_policy_says() -> None:
    """Default, range and text of each key stand beside its field; the table may add how to choose."""
    rows = table(section("Choosing the policy"), "key")
    assert [cells[0] for cells in rows] == [f"`{name}`" for name in KEYS]
    for (_, default, allowed, what), (name, key) in zip(rows, KEYS.items(), strict=True):
        shown = f"`{key.default}`" if isinstance(key.default, str) else str(key.default)
        assert default == {"``": "empty", "{}": "none"}.get(shown, shown), name
        assert allowed == key.kind.allowed, name
        assert what.startswith(key.what), name


def test_the_ports_are_the_edges_of_the_protocol() -> None:
    found = source().federation
    rows = {
        (a, b): set(re.findall(r"`(\w+)`", calls))
        for a, b, calls, *_ in table(section("Ports, and who dials whom"), "from")
    }
    first, last = found.chain[0], found.chain[-1]
    names = {"aggregator": found.aggregator.name}
    told: dict[tuple[str, str], set[str]] = {}
    for (a, b), calls in rows.items():
        if a in ("Prometheus", "`silomix status`", "every node"):
            continue
        sources = {"silo": found.silo_names, "hop": found.chain[:-1], "last hop": [last]}.get(a, [names.get(a, "")])
        for one in sources:
            following = dict(zip(found.chain, found.chain[1:], strict=False))
            targets = {
                "first hop of the chain": [first],
                "every hop of the chain": found.chain,
                "next hop": [following.get(one, "")],
            }.get(b, [names.get(b, "")])
            for target in targets:
                told.setdefault((one, target), set()).update(calls)
    assert told == {(edge.source, edge.target): set(edge.calls) for edge in edges(found)}


def test_the_worked_example_is_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = section("Capacity")
    command = re.search(r"^silomix (capacity .*)$", text, re.MULTILINE)
    assert command is not None
    assert main(command[1].split()) == 0
    said = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert f"```text\n{said}\n```" in text
    hop = re.search(r"hop 1 +│ +([\d.]+)", said)
    assert hop is not None
    assert f"8 x {hop[1]} / 100 = {8 * float(hop[1]) / 100:.0f} s" in text


def test_the_formula_is_the_codes() -> None:
    text = section("Capacity")
    rows = {name: cells for name, *cells in table(text, "what")}
    for place, cpu, memory in zip(Place, rows["processor, s"], rows["memory"], strict=True):
        cost = COSTS[place]
        terms = [f"{cost.round_s:g}"] if cost.round_s else []
        terms.append(f"{cost.silo_s:g} n")
        rates = (("P", cost.ns_per_parameter), ("n P", cost.ns_per_value))
        terms += [f"{rate:g} {of} / 10^9" for of, rate in rates if rate]
        assert cpu == " + ".join(terms), place
        extra = f" + n / {1 / cost.mib_per_silo:g} MiB" if cost.mib_per_silo else ""
        assert memory == f"{cost.base_mib} MiB + {cost.bytes_per_parameter:g} P{extra}", place
    assert f"{CHUNK_BYTES} bytes for each" in text
    assert f"H = {HEADER_BYTES} + {SEED_BYTES} (h + 1)" in text


@pytest.mark.parametrize("sums", [1, 3])
def test_the_bytes_of_the_formula_are_the_codes(sums: int) -> None:
    load = Load(parameters=4096, silos=9, hops=3, bits=18, rounds=100, sums=sums)
    values = {"P": load.parameters, "n": 9, "B": load.body_bytes, "H": load.header_bytes, "G": sums}
    rows = {name: cells for name, *cells in table(section("Capacity"), "what")}
    for place, came, went, disk in zip(Place, rows["bytes in"], rows["bytes out"], rows["disk"], strict=True):
        needed = needs(place, load)
        assert _computed(came, values) == needed.received_bytes, place
        assert _computed(went, values) == needed.sent_bytes, place
        if place is not Place.AGGREGATOR:
            assert _computed(disk, values) == needed.disk_bytes, place


def _computed(cell: str, values: dict[str, int]) -> int:
    """Work out a cell such as "n (B + H)"; what it says of groups is behind a comma."""
    alone, _, grouped = cell.removesuffix(" with groups").partition(", or ")
    formula = grouped if grouped and values["G"] > 1 else alone
    found = eval(re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula.replace("-", "0")), {}, values)
    assert isinstance(found, int)
    return found


def test_what_was_measured_fits_the_formula() -> None:
    """The constants are no better than the measurements beside them: within a third, and never far too small."""
    for label, _, *cells in table(section("Capacity"), "P"):
        parameters = int(label.split(", 30")[0].replace(",", ""))
        silos = 30 if "30 silos" in label else 10
        for place, cell in zip(Place, cells, strict=True):
            cost = COSTS[place]
            seconds, mebibytes = map(float, cell.split(", "))
            cpu = cost.round_s + cost.silo_s * silos
            cpu += (cost.ns_per_parameter + cost.ns_per_value * silos) * parameters / 1e9
            memory = cost.base_mib + cost.bytes_per_parameter * parameters / 2**20 + cost.mib_per_silo * silos
            assert 0.7 * seconds < cpu < 1.4 * seconds + 0.03, (place, label)
            assert 0.9 * mebibytes < memory < 1.35 * mebibytes, (place, label)


def test_paths_and_anchors_lead_somewhere() -> None:
    for path in set(re.findall(r"(?<![\w/])(deploy/[\w./-]*[\w/])", TEXT)):
        if not path.startswith("deploy/fed"):
            assert list(ROOT.glob(f"{path}*")), path
    heads = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    for anchor in re.findall(r"\]\(#([^)]+)\)", TEXT):
        assert anchor in anchors, anchor


def test_every_alert_is_explained() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    text = (ROOT / "docs" / "monitoring.md").read_text()
    assert "](monitoring.md)" in TEXT
    assert alerts == set(re.findall(r"^\| `(Silomix\w+)` \|", text, re.MULTILINE))
