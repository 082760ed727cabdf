"""Logs: readable for people, one object per line for collectors, and sizes instead of payloads for everybody."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.observe.log import Log, plain, redirected, setup
from silomix.v1 import body_pb2

PAYLOAD = b"attack material!"
SHAPES: list[Any] = [
    PAYLOAD,
    bytearray(PAYLOAD),
    memoryview(PAYLOAD),
    [PAYLOAD],
    (PAYLOAD,),
    {"a": PAYLOAD},
    {PAYLOAD: 1},
]


@dataclass
class Letter:
    body: bytes


SHAPES += [
    {PAYLOAD},
    Letter(PAYLOAD),
    KeyError(PAYLOAD),
    np.frombuffer(PAYLOAD, dtype=np.uint8),
    body_pb2.Trailer(root=PAYLOAD),
    Secret(PAYLOAD * 2),
    [{"deep": (Secret(PAYLOAD * 2),)}],
]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("silomix")
    handlers, level = list(root.handlers), ours.level
    yield
    for handler in [h for h in root.handlers if h not in handlers]:
        root.removeHandler(handler)
    ours.setLevel(level)


Written = Callable[[], list[str]]


def to(style: str, level: int | str = "INFO") -> Written:
    stream = io.StringIO()
    setup(style, "process", level, stream)
    return lambda: stream.getvalue().splitlines()


def test_console_shows_time_level_node_message_and_fields() -> None:
    lines = to("console")
    Log("hop-1").bind(round=3, attempt=1).info("cohort closed at 100%", peer="silo 2", size=7, share=0.5, why=None)
    (line,) = lines()
    time, rest = line.split(" ", 1)
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert (
        rest == 'INFO    hop-1  cohort closed at 100%  round=3  attempt=1  peer="silo 2"  size=7  share=0.5  why=null'
    )


def test_json_is_one_object_per_line() -> None:
    lines = to("json")
    log = Log("hop-1").bind(round=3, attempt=1)
    log.info("two\nlines", peer="silo-1")
    log.warning(
        "refused", reason=Reason.WRONG_ROUND, loss=float("nan"), time="noon", path=Path("a"), tags={"x": (1, 2)}
    )
    first, second = map(json.loads, lines())
    assert first["message"] == "two\nlines"
    assert (first["level"], first["node"], first["logger"]) == ("info", "hop-1", "silomix")
    assert (first["round"], first["attempt"], first["peer"]) == (3, 1, "silo-1")
    assert (second["level"], second["reason"], second["loss"]) == ("warning", "wrong_round", "nan")
    assert (second["field_time"], second["path"], second["tags"]) == ("noon", "a", {"x": [1, 2]})
    assert second["time"].endswith("Z")


def test_stdlib_loggers_can_give_fields_as_extra() -> None:
    lines = to("json")
    logging.getLogger("silomix.transport").info("received %d bytes from %s", 5, "x", extra={"round": 3, "reason": "r"})
    (line,) = map(json.loads, lines())
    assert (line["message"], line["round"], line["reason"]) == ("received 5 bytes from x", 3, "r")
    assert (line["node"], line["logger"]) == ("process", "silomix.transport")


def test_binding_leaves_the_first_log_alone() -> None:
    lines = to("json")
    log = Log("silo-1", round=1)
    log.bind(round=2).info("later", round=3)
    log.info("first")
    assert [json.loads(line)["round"] for line in lines()] == [3, 1]


@pytest.mark.parametrize("style", ["console", "json"])
@pytest.mark.parametrize("value", SHAPES, ids=lambda v: type(v).__name__)
def test_payloads_and_secrets_never_print(style: str, value: Any) -> None:
    lines = to(style)
    Log("silo-1", bound=value).info("field", given=value)
    logging.getLogger("silomix").info("argument %s %r", value, value, extra={"extra": value})
    logging.getLogger("silomix").info("by name %(a)s", {"a": value})
    text = "\n".join(lines())
    assert len(lines()) == 3
    assert "attack" not in text
    assert "97, 116, 116" not in text


def test_sizes_take_the_place_of_payloads() -> None:
    assert plain(PAYLOAD) == plain(bytearray(PAYLOAD)) == plain(memoryview(PAYLOAD)) == "<16 bytes>"
    assert plain(np.zeros(3, dtype=np.float32)) == "<ndarray, 12 bytes>"
    assert plain(body_pb2.Trailer(root=PAYLOAD)) == "<Trailer, 18 bytes>"
    assert plain(Secret(bytes(32))) == "<Secret>"
    assert plain([np.int64(3), np.float32(0.5), True, None]) == [3, 0.5, True, None]
    assert plain(ValueError("bad 3")) == "ValueError: bad 3"


def test_numbers_keep_their_format_in_arguments() -> None:
    lines = to("json")
    logging.getLogger("silomix").info("%.1f %d", float("inf"), np.int64(7))
    assert json.loads(lines()[0])["message"] == "inf 7"


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_peers_text_cannot_forge_a_line_or_a_field(message: str, peer: str) -> None:
    console = to("console")
    Log("hop-1").info(message, peer=peer, end=1)
    (line,) = console()
    assert line.isprintable()
    value = line.rpartition("  end=")[0].rpartition("  peer=")[2] if "  peer=" not in peer else None
    if value is not None and not value.startswith('"'):
        assert value == peer
        assert " " not in value
    as_json = to("json")
    Log("hop-1").info(message, peer=peer)
    (line,) = as_json()
    assert (json.loads(line)["message"], json.loads(line)["peer"]) == (message, peer)


def test_a_fault_says_whose_it_is_why_and_with_which_details() -> None:
    lines = to("json")
    log = Log("hop-1", peer="silo-1")
    log.fault("refused", PeerFault(Reason.UNKNOWN_PEER, "who is that", peer="silo-9", found=3), round=4)
    log.fault("not sent", LocalFault(Reason.NOT_FINITE, "NaN in conv1", tensor="conv1"))
    theirs, ours = map(json.loads, lines())
    assert (theirs["level"], theirs["message"], theirs["reason"]) == ("warning", "refused: who is that", "unknown_peer")
    assert (theirs["peer"], theirs["fault_peer"], theirs["found"], theirs["round"]) == ("silo-1", "silo-9", 3, 4)
    assert (ours["level"], ours["reason"], ours["tensor"]) == ("error", "not_finite", "conv1")


@pytest.mark.parametrize("style", ["console", "json"])
def test_an_exception_brings_its_traceback(style: str) -> None:
    lines = to(style)
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        Log("hop-1").exception("failed", round=1)
    text = "\n".join(lines())
    assert "ZeroDivisionError: by zero" in text
    assert "Traceback" in text
    assert style == "console" or json.loads(text)["exception"].startswith("Traceback")


def test_setting_up_again_replaces_what_was() -> None:
    old, new = to("console"), to("json", "debug")
    before = len(logging.getLogger().handlers)
    newest = to("json", logging.WARNING)
    assert len(logging.getLogger().handlers) == before
    Log("n").info("not shown")
    Log("n").error("shown")
    logging.getLogger("other.library").info("not shown either")
    logging.getLogger("other.library").warning("shown too")
    assert not old()
    assert not new()
    assert [json.loads(line)["message"] for line in newest()] == ["shown", "shown too"]


def test_levels_and_styles() -> None:
    lines = to("json", "warning")
    Log("n").info("fine")
    Log("n").warning("odd")
    Log("n").error("bad")
    assert [json.loads(line)["level"] for line in lines()] == ["warning", "error"]
    with pytest.raises(ValueError, match="console, json"):
        setup("xml", "n")


def test_by_default_it_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    setup("console", "n")
    Log("n").info("hello")
    out, err = capsys.readouterr()
    assert not out
    assert "hello" in err


def test_of_two_that_redirect_logs_either_may_end_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Two federations in one process: what one of them leaves behind is neither a closed file nor silence."""
    first, second = io.StringIO(), io.StringIO()
    one, other = redirected(first), redirected(second)
    one.__enter__()
    Log("n").info("to the first")
    other.__enter__()
    Log("n").info("to the second")
    one.__exit__(None, None, None)
    Log("n").info("to the second again")
    other.__exit__(None, None, None)
    with redirected(first), redirected(second):
        pass
    setup("console", "n")
    Log("n").info("to stderr")
    assert first.getvalue().count("to the first") == len(first.getvalue().splitlines()) == 1
    assert [line.rpartition("  ")[2] for line in second.getvalue().splitlines()] == [
        "to the second",
        "to the second again",
    ]
    assert "to stderr" in capsys.readouterr().err


def test_whoever_redirects_logs_gets_them_back_when_a_later_one_ends() -> None:
    outer = io.StringIO()
    with redirected(outer):
        with redirected(io.StringIO()):
            Log("n").info("elsewhere")
        Log("n").info("here")
    assert "here" in outer.getvalue()
    assert "elsewhere" not in outer.getvalue()
