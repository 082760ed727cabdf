"""What is shown of a run while it runs."""

from io import StringIO

from rich.console import Console

from silomix.runtime.cli.start.screen import Screen
from silomix.runtime.front.run import News
from silomix.runtime.observe.remarks import CLIPPED, Remark
from silomix.v1 import services_pb2


def test_what_silos_clip_is_said_before_the_rounds_of_a_fast_run_that_come_at_once() -> None:
    out = StringIO()
    clipped = Remark("silo-01", "warning", f"{CLIPPED} w", {"tensor": "w", "round": 1})
    done = [services_pb2.RoundStatus(round=number, attempts=1, cohort=3) for number in (1, 2)]
    with Screen(Console(file=out, width=200)) as screen:
        screen.show(News(remarks=(clipped,)))
        assert not out.getvalue(), "other silos have not spoken yet"
        screen.show(News(status=services_pb2.GetStatusResponse(rounds=2, history=done)))
    lines = out.getvalue().splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["!", "round", "round"]
