"""The tool that looks for checks which no test holds: it makes the mutants that it should, and tells them apart."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mutants import harmless, scope
from tests.mutants.operators import mutants

RULES = """
from silomix.runtime.core.digest import digest


class Fault(Exception):
    pass


def check(a, b, c):
    if a != b or not 1 <= c < 5:
        raise Fault("which")
    if c in (3, 4):
        note = "odd"
        raise Fault(note)
    if (a, b) != (b, a):
        raise Fault("order")
    _check_rest(a)
    least = max(a, b, 3)
    if any(x != least for x in c if x > 2):
        raise Fault("least")


def _check_rest(a):
    parts = [a.one, a.two]
    parts.append(a.three)
    return digest("rest", a.head, *parts)


def fixed(value, size):
    if len(value) != size:
        raise Fault("length")
    return value


def read(wire):
    return fixed(wire.key, 32)


def caller(tls, given, certificate):
    if tls is None:
        name = given
    else:
        name = certificate
    return name


def late(self, event):
    if event.manifest != self.manifest:
        return []
    return self.act(event)


OPTIONS = (("grpc.one", 1), ("grpc.two", 2))
CREDENTIALS = credentials(require_client_auth=True)
"""

MACHINE = """
from silomix.runtime.core.protocol.machine import IGNORES, Remember, does, refuses

NONE = refuses(1, "no")
TABLE = {
    "idle": {Open: does("_open"), Body: NONE, Tick: IGNORES},
    "open": {Open: IGNORES, Body: does("_body"), Tick: does("_tick")},
}


def _open(self, event):
    remember = [] if self.known else [Remember(event)]
    return [*remember, Begin(event)]


def _close(self):
    return [Remember(self.cohort), Release()]


def _forget(self):
    gone = [Remember(key) for key in self.keys]
    if self.late:
        gone.append(Remember(self.now))
    return gone + self.next()
"""


def changes(text: str, kind: str, function: str = "") -> set[str]:
    """What the mutants of a kind make of their lines."""
    source = text.encode()
    return {
        "; ".join(line[2:].strip() for line in mutant.difference(source).splitlines() if line[0] == "+")
        for mutant in mutants("runtime/core/rules.py", source)
        if mutant.kind == kind and mutant.function.startswith(function)
    }


@pytest.mark.parametrize(
    ("kind", "function", "expected"),
    [
        ("raise", "late", set()),
        ("raise", "fixed", {"pass"}),
        ("call", "check", {"pass"}),
        ("call", "read", {"return wire.key"}),
        ("guard", "check", {"if False:"}),
        ("guard", "late", {"if False:"}),
        (
            "operand",
            "check",
            {"if not 1 <= c < 5:", "if a != b:", "if a != b or not (1 <= c):", "if a != b or not (c < 5):"},
        ),
        (
            "edge",
            "check",
            {
                "if a != b or not 1 < c < 5:",
                "if a != b or not 1 <= c <= 5:",
                "if any(x != least for x in c if x >= 2):",
            },
        ),
        ("member", "check", {"if c in (3,):", "if c in (4,):", "if (b,) != (a,):", "if (a,) != (b,):"}),
        ("filter", "check", {"if any(x != least for x in c if True):"}),
        ("bound", "check", {"least = max(b, 3)", "least = max(a, 3)", "least = max(a, b)"}),
        (
            "part",
            "_check_rest",
            {
                'return digest("", a.head, *parts)',
                'return digest("rest", *parts)',
                'return digest("rest", a.head)',
                "parts = [a.two]",
                "parts = [a.one]",
                "pass",
            },
        ),
        ("branch", "caller", {"if True:", "if False:"}),
        ("branch", "late", set()),
        (
            "option",
            "",
            {
                'OPTIONS = (("grpc.two", 2),)',
                'OPTIONS = (("grpc.one", 1),)',
                "CREDENTIALS = credentials(require_client_auth=False)",
            },
        ),
    ],
)
def test_each_check_is_dropped_or_weakened(kind: str, function: str, expected: set[str]) -> None:
    assert changes(RULES, kind, function) == expected


def test_four_faults_are_not_raised() -> None:
    raised = [m for m in mutants("rules.py", RULES.encode()) if (m.kind, m.function) == ("raise", "check")]
    assert len(raised) == 4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "row",
            {
                '"idle": {Open: does("_open"), Body: IGNORES, Tick: IGNORES},',
                '"idle": {Open: does("_open"), Body: NONE, Tick: does("_tick")},',
                '"open": {Open: does("_open"), Body: does("_body"), Tick: does("_tick")},',
            },
        ),
        ("fact", {"remember = [] if self.known else []", "return [Release()]", "gone = []", "pass"}),
        (
            "order",
            {
                "return [Begin(event), *remember]",
                "return [Release(), Remember(self.cohort)]",
                "return self.next() + gone",
            },
        ),
    ],
)
def test_tables_and_facts_are_changed(kind: str, expected: set[str]) -> None:
    assert changes(MACHINE, kind) == expected


def test_a_table_that_ignores_nothing_learns_to() -> None:
    text = (
        MACHINE.replace("IGNORES, Remember", "Remember").replace(", Tick: IGNORES", "").replace("Open: IGNORES, ", "")
    )
    assert any("import IGNORES; TABLE = {" in change and "Body: IGNORES" in change for change in changes(text, "row"))


def test_what_is_cached_or_done_on_import_may_show_anywhere() -> None:
    text = "@cached_property\ndef key(self):\n    return digest('key', self.one)\n\nK = digest('a', b)\n".replace(
        "'", '"'
    )
    assert all(mutant.everywhere for mutant in mutants("rules.py", text.encode()))
    assert not any(mutant.everywhere for mutant in mutants("rules.py", text[17:].encode()) if mutant.function)


def test_what_is_known_of_a_mutant_is_kept_until_its_function_changes() -> None:
    def keys(text: str) -> set[str]:
        return {m.key(text.encode()) for m in mutants("rules.py", text.encode()) if m.function == "check"}

    text = """
@checked
def check(a):
    if a:
        raise Refused


def other(b):
    if b:
        raise Refused
"""
    assert keys(text)
    assert keys(text) == keys(text.replace("def other(b)", "def other(b, c)"))
    assert keys(text) == keys("import others\n" + text)
    assert keys(text).isdisjoint(keys(text.replace("@checked", "@cached")))
    assert keys(text).isdisjoint(keys(text.replace("if a", "if not a")))


TOY = """
def check(value: int) -> None:
    if value < 0:
        raise ValueError("negative")
    if value > 10:
        raise ValueError("large")
    if value == 7:
        while value:
            value -= 1
        raise ValueError("seven")
"""

TOY_TEST = """
from functools import cache

import pytest
import toy


def test_negative():
    toy.check(0)
    with pytest.raises(ValueError, match="negative"):
        toy.check(-1)


def test_it_takes_ten():
    toy.check(10)


def test_broken():
    assert False
"""

DRIVER = """
import json, sys
from pathlib import Path
from tests.mutants.operators import mutants
from tests.mutants.reach import read, trace
from tests.mutants.runner import Case, selected, try_all

source = Path("toy.py").read_bytes()
trace("test_toy.py", {"toy.py": Path("toy.py")}, Path("reach.json"))
tests = read("test_toy.py", Path("reach.json"))
cases = (
    Case(m, source, "toy", Path("toy.py").absolute(), selected(m, [["test_toy.py"]], tests, 60.0))
    for m in mutants("toy.py", source)
)
verdicts = [[case.mutant.difference(source), *vars(verdict).values()] for case, verdict in try_all(cases, 2)]
json.dump({"verdicts": verdicts, "broken": [n for n, t in tests.items() if not t.passed]}, sys.stdout)
"""


def test_what_a_test_notices_is_killed_and_what_none_does_survives(tmp_path: Path) -> None:
    for name, text in (("toy.py", TOY), ("test_toy.py", TOY_TEST)):
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(scope.ROOT), "TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["broken"] == ["test_toy.py::test_broken"]
    verdicts = {difference.splitlines()[-1][2:].strip(): rest for difference, *rest in found["verdicts"]}
    assert verdicts["if value <= 0:"][:2] == ["killed", "test_toy.py::test_negative"]
    assert verdicts["if value >= 10:"][:2] == ["killed", "test_toy.py::test_it_takes_ten"]
    assert verdicts["if False:"] == ["survived", "", ""]
    by_line = {difference: rest for difference, *rest in found["verdicts"]}
    assert by_line['- raise ValueError("negative")\n+ pass'][0] == "killed"
    assert by_line['- raise ValueError("large")\n+ pass'] == ["survived", "", "no test passes here"]
    assert not list((tmp_path / "temporary").iterdir()), "something was left behind"
    assert (tmp_path / "toy.py").read_text() == TOY


def test_the_page_is_read() -> None:
    page = (
        "# Mutants\n\nText.\n\n## `a.py`\n\n### `f`\n\n```diff\n- x\n+ y\n```\n\n```diff\n- z\n```\n\nFor a\nreason.\n"
    )
    found = list(harmless.read(page))
    assert [(h.module, h.function, h.difference) for h in found] == [("a.py", "f", "- x\n+ y"), ("a.py", "f", "- z")]
    assert {h.reason for h in found} == {"For a reason."}
    with pytest.raises(AssertionError, match="no reason"):
        list(harmless.read(page.replace("For a\nreason.\n", "")))


@pytest.mark.full
def test_all_that_the_page_lists_can_still_be_made() -> None:
    known = list(harmless.read(harmless.PAGE.read_text()))
    for module in scope.modules():
        source = (scope.ROOT / module).read_bytes()
        made = mutants(module, source)
        for entry in (entry for entry in known if entry.module == module):
            assert any(entry.is_(mutant, source) for mutant in made), entry
    assert {entry.module for entry in known} <= set(scope.modules())
