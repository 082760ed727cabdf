"""A file that is read is of the shape that honest files have: tomllib never sees what would cost it much."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.core.protocol.federations import federation

from silomix.runtime.config import tables
from silomix.runtime.config.federation import parse_federation
from silomix.runtime.config.tables import MOST_DEEP, MOST_DOTS, MOST_MARKS, ConfigError, parse
from silomix.runtime.config.texts import federation_text
from silomix.runtime.core.policy import MAX_SHUFFLERS, MAX_SILOS
from silomix.runtime.core.protocol.federation import Owner

FILE = Path("offered")
LONG = 100_000
DOTS = ".".join("a" * (MOST_DOTS + 2))


def problem_of(content: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why a text is refused before tomllib sees it."""

    def unread(_: str) -> dict[str, Any]:
        raise AssertionError("tomllib was given it")

    monkeypatch.setattr(tomllib, "loads", unread)
    with pytest.raises(ConfigError) as caught:
        parse(content, FILE)
    return caught.value.problem


@pytest.mark.parametrize(
    "content",
    [
        f"{'.'.join('a' * LONG)}=1",
        f"{DOTS} = 1",
        f"[{DOTS}]",
        f"[[{DOTS}]]",
        f"a = {{{DOTS} = 1}}",
        f"a = {{k = 1, {DOTS} = 1}}",
        f"a = {{k = 'it''s', {DOTS} = 1}}",
        " . ".join("a" * (MOST_DOTS + 2)) + " = 1",
        ".".join(['"a"'] * (MOST_DOTS + 2)) + " = 1",
        ".".join(["'a.\"'"] * (MOST_DOTS + 2)) + " = 1",
        f'a = """\n # not here \\""" ."""\n{DOTS} = 1',
        f'a = {{k = """a"""", {DOTS} = 1}}',
        f"a = {{k = '''a\"'''', {DOTS} = 1}}",
        f"a = '\\'\n{DOTS} = 1",
        f'a = "\\""\n{DOTS} = 1',
        f"# a comment with a ' and a \"\n{DOTS} = 1",
    ],
)
def test_a_key_with_many_dots_is_refused_wherever_it_stands(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "dots" in problem_of(content, monkeypatch)


@pytest.mark.parametrize("opens", ["[", "{a=", "[{a="])
def test_brackets_in_brackets_are_refused_before_they_are_followed(opens: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "in each other" in problem_of("a=" + opens * LONG, monkeypatch)


@pytest.mark.parametrize("line", ["[t{}]", "[[t]]#{}", "k{}=[]", "k{}={{}}", "k{}.a=1", "k{}=[[],[]]"])
def test_there_are_so_many_tables_and_arrays_and_no_more(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "\n".join(line.format(i) for i in range(MOST_MARKS + 1))
    assert str(MOST_MARKS) in problem_of(content, monkeypatch)


@pytest.mark.parametrize(
    "content",
    [
        f"{'.'.join('a' * (MOST_DOTS + 1))} = 1",
        f"a = {'[' * MOST_DEEP}{']' * MOST_DEEP}",
        f"a = [{'0.5, ' * 1000}]",
        f'a = "{"." * LONG}" # {"[." * LONG}',
        f"a = '''{'[.' * LONG}\n'''''",
        f'a = """{"{." * LONG}\\""""""',
    ],
)
def test_what_only_looks_like_much_is_read(content: str) -> None:
    assert parse(content, FILE) == tomllib.loads(content)


@pytest.mark.parametrize("content", ['\\"""\n', '"\n', "'\n", "\\", '"\\', ".\n", "'\"\\"])
@pytest.mark.parametrize("before", ["", 'a = """', "a = '''"])
def test_quotes_without_an_end_are_refused(content: str, before: str) -> None:
    """And are passed over once, not again from each of them."""
    with pytest.raises(ConfigError):
        parse(before + content * LONG, FILE)


def test_numbers_that_are_too_long_to_show_are_refused_like_others() -> None:
    long = "0x" + "f" * 10_000
    for value in (long, f"[{long}]", f"{{a = {long}}}"):
        with pytest.raises(ConfigError, match="name"):
            parse_federation(f"name = {value}", FILE, b"")


def test_the_largest_federation_has_fewer_marks_than_a_file_may_have() -> None:
    most = federation(silos=MAX_SILOS, hops=MAX_SHUFFLERS)
    owners = tuple(Owner(f"owner-of-{name}", member.key) for name, member in most.members.items())
    assert tables._excess(federation_text(replace(most, owners=owners))) == ""
