"""Logs of one's own nodes, read as they are written."""

import io
import logging
import re
from pathlib import Path

import pytest

from silomix.runtime.observe.log import Log, redirected, setup
from silomix.runtime.observe.remarks import PASSING, Follower, Remark, read_line, sentences

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("style", ["console", "json"])
def test_what_a_node_logs_is_read_back(style: str) -> None:
    stream = io.StringIO()
    setup(style, "node", stream=stream)
    log = Log("silo-02", round=3)
    log.info("trained")
    log.warning('clipped: 7 values of "a b"', tensor="a b", share=0.5, bound=1.0)
    log.error("not in this round: w = NaN", reason="not_finite")
    log.warning("the aggregator is not reachable, trying again", code="UNAVAILABLE")
    with redirected(io.StringIO()):
        pass  # the handler is let go
    found = [remark for line in stream.getvalue().splitlines() if (remark := read_line(line)) is not None]
    assert [(one.node, one.level, one.round) for one in found] == [("silo-02", "warning", 3), ("silo-02", "error", 3)]
    assert [one.message for one in found] == ['clipped: 7 values of "a b"', "not in this round: w = NaN"]
    assert {"tensor": "a b", "share": 0.5, "bound": 1.0}.items() <= found[0].fields.items()
    assert found[1].fields["reason"] == "not_finite"


@pytest.mark.parametrize("line", ["", "Traceback (most recent call last):", "{", '{"level": "error"}', "silomix: no"])
def test_what_is_no_line_of_a_log_is_passed_over(line: str) -> None:
    assert read_line(line) is None


def test_a_follower_reads_what_is_new_and_whole(tmp_path: Path) -> None:
    log, other = tmp_path / "log.txt", tmp_path / "later.txt"
    log.write_text("2026-01-01T00:00:00.000Z ERROR   silo-01  of an earlier run\n")
    follower = Follower([log, other])
    assert follower.new() == []
    with log.open("a") as stream:
        stream.write("2026-01-01T00:00:01.000Z WARNING silo-01  first  round=1\n2026-01-01T00:00:02.000Z ERROR   si")
    assert [(one.message, one.round) for one in follower.new()] == [("first", 1)]
    with log.open("a") as stream:
        stream.write("lo-01  second\n")
    other.write_text("2026-01-01T00:00:03.000Z ERROR   silo-02  third\n")
    assert [(one.node, one.message) for one in follower.new()] == [("silo-01", "second"), ("silo-02", "third")]
    assert follower.new() == []


def test_the_same_from_many_is_said_once() -> None:
    def clipped(silo: int, tensor: str, share: float, bound: float) -> Remark:
        fields = {"tensor": tensor, "share": share, "bound": 1.0, "suggested_bound": bound}
        return Remark(f"silo-{silo}", "warning", f"clipped: {share} of {tensor}", fields)

    remarks = [
        clipped(1, "a", 0.2, 2.0),
        clipped(2, "a", 0.4, 20.0),
        *(clipped(2, name, 0.1, 2.0) for name in "bcde"),
        Remark("silo-1", "error", "not in this round: NaN"),
        Remark("silo-2", "error", "not in this round: NaN"),
        Remark("silo-3", "error", "disk full"),
    ]
    first, *others = sentences(remarks)
    assert first.startswith(
        "2 silos clipped a (up to 40% of its values), b (up to 10% of its values), c (up to 10% of its values) and 2 "
        "more tensors to the bound 1, so less was sent than was trained: policy.bound = 20 would hold all of it"
    )
    assert first.endswith('"auto" gives each tensor its own')
    assert others == ["silo-1 and 1 more: not in this round: NaN", "silo-3: disk full"]
    assert sentences([]) == []


def test_what_automatic_bounds_cut_is_said_otherwise() -> None:
    fields = {"tensor": "a", "share": 0.2, "bound": 0.5, "suggested_bound": 2.0, "automatic": True}
    (said,) = sentences([Remark("silo-1", "warning", "clipped: some", fields)])
    assert said == (
        "1 silo clipped a (up to 20% of its values), so less was sent than was trained: policy.bound = 2 would hold "
        "all of it, and bounds that follow from the model grow with what it has moved"
    )


def test_trouble_that_may_pass_is_told_in_the_words_that_nodes_use() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "runtime" / "nodes").rglob("*.py"))
    for words in PASSING:
        assert re.search(rf'log\.\w+\(\s*f?"{words}', sources), words
        assert Remark("aggregator", "warning", f"{words}...").passing
    assert not Remark("silo-1", "error", "not in this round: NaN").passing


def test_what_this_program_says_itself_has_no_name_before_it() -> None:
    stream = io.StringIO()
    with redirected(stream):
        logging.getLogger("silomix.models").warning("head: bfloat16 holds 8 bits of a value")
    (remark,) = filter(None, map(read_line, stream.getvalue().splitlines()))
    assert sentences([remark]) == ["head: bfloat16 holds 8 bits of a value"]
