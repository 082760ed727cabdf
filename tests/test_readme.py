"""What the documents say is what the code does: examples run, commands parse, every metric is listed and exists."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import silomix
from silomix.runtime.cli import make_parser
from silomix.runtime.config.keys import NODE_KEYS, POLICY_KEYS
from silomix.runtime.config.kinds import Role
from silomix.runtime.observe.metrics import Metrics

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PYTHON = ROOT / "docs" / "python.md"
OPERATIONS = ROOT / "docs" / "operations.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
ROLE_WORDS = {"every node": {*Role}, "aggregator": {Role.AGGREGATOR}, "silo, on request": {Role.SILO}}


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page that are marked with one of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def examples() -> dict[str, str]:
    """The programs of the README and of the page for Python, by the name that each has in its first line."""
    programs = {}
    for text in (*blocks(README, "python"), *blocks(PYTHON, "python")):
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None, f"an example says in its first line what its file is called: {text[:60]!r}"
        programs[name[1]] = text
    return programs


def commands() -> list[tuple[str, str]]:
    """Every command line of ours in the shell blocks of the documents, with its page."""
    lines = ((page, line) for page in PAGES for text in blocks(page, "sh", "") for line in text.splitlines())
    return [(page.name, line) for page, line in lines if line.startswith("silomix ")]


def run(program: str, directory: Path) -> str:
    """Run one example as a user would, beside the others, and return what it prints."""
    for name, text in examples().items():
        (directory / name).write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".src")}
    done = subprocess.run(
        [sys.executable, program], cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_example_has_a_test() -> None:
    assert list(examples()) == ["mytask.py", "network.py", "federation.py", "processes.py"]


def test_a_task_takes_less_than_twenty_lines() -> None:
    lines = [line for line in examples()["mytask.py"].splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) < 20


def test_a_network_is_trained_in_ten_lines(tmp_path: Path) -> None:
    printed = run("network.py", tmp_path)
    rounds, accuracy = re.fullmatch(r"(\d) rounds, accuracy (\d\.\d\d)\n", printed).groups()  # type: ignore[union-attr]
    assert rounds == "3"
    assert float(accuracy) > 0.9


def test_the_federation_of_the_page_runs(tmp_path: Path) -> None:
    printed = run("federation.py", tmp_path)
    assert printed.startswith("5 rounds with 3 silos: [")
    weights = [float(number) for number in re.findall(r"-?\d\.\d+", printed)]
    assert weights == pytest.approx([0.5, -0.25, 0.125], abs=0.05)


@pytest.mark.full
def test_the_processes_of_the_page_run(tmp_path: Path) -> None:
    assert "all rounds are done" in run("processes.py", tmp_path)


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_parse(page: str, line: str) -> None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:  # comments are gone; what a pipe or the background gets is not ours
        if set(word) <= set("|&;"):
            break
        words.append(word)
    try:
        make_parser().parse_args(words[1:])
    except SystemExit:
        pytest.fail(f"{page} has a command that does not exist: {line}")


def test_there_are_commands_to_parse() -> None:
    assert {line.split()[1] for _, line in commands()} >= {"init", "shuffler", "aggregator", "silo", "status", "plan"}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def rows(page: Path, pattern: str) -> list[list[str]]:
    """The cells of those table rows whose first cell is code that matches."""
    lines = [line for line in page.read_text().splitlines() if re.match(rf"\| `{pattern}` \|", line)]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def metrics_of(role: Role) -> dict[str, str]:
    """The names, as Prometheus sees them, and types of what a node of a role tells."""
    suffixes = {"counter": "_total", "info": "_info"}
    families = Metrics(str(role), "node", training=role is Role.SILO).registry.collect()
    return {
        family.name + suffixes.get(family.type, ""): family.type
        for family in families
        if family.name.startswith("silomix_")
    }


def test_operations_lists_every_metric_and_no_other() -> None:
    listed = {(name, kind, who) for name, kind, who, *_ in rows(OPERATIONS, r"silomix_\w+")}
    assert len(listed) == len(rows(OPERATIONS, r"silomix_\w+"))
    existing = {role: metrics_of(role) for role in Role}
    for role, found in existing.items():
        expected = {name: kind for name, kind, who in listed if role in ROLE_WORDS[who]}
        assert expected == found, role


@pytest.mark.parametrize("keys", [POLICY_KEYS, NODE_KEYS], ids=["policy", "node"])
def test_operations_explains_every_key(keys: dict[str, object]) -> None:
    text = OPERATIONS.read_text()
    missing = [key for key in keys if f"`{key}`" not in text]
    assert not missing


DEEP = re.compile(r"^ *(?:from (silomix\.[\w.]+) import ([\w, ]+)|import (silomix\.[\w.]+))", re.MULTILINE)


def test_documents_use_the_front_door() -> None:
    """A name that `import silomix` offers is not imported from a room."""
    for page in PAGES:
        for text in blocks(page, "python"):
            for module, names, whole in DEEP.findall(text):
                assert not whole, f"{page.name}: import {whole}"
                assert not {n.strip() for n in names.split(",")} & set(silomix.__all__), f"{page.name}: from {module}"
