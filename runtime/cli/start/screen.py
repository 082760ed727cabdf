"""What is shown of a run while it runs: live where somebody watches, else a line for each round."""

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from silomix.runtime.cli.federation.status import hops, rounds_table
from silomix.runtime.front.run import News
from silomix.runtime.observe.remarks import CLIPPED, Remark, sentences
from silomix.runtime.results import Round
from silomix.v1 import services_pb2


class Screen:
    """Shows news. What silos clip is said once for a tensor, when a round is done: by then all silos have spoken."""

    def __init__(self, out: Console) -> None:
        """The console is that of remarks: results come later, and elsewhere."""
        self._out = out
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=out,
        )
        self._task = self._bar.add_task("", total=None)
        self._live = Live(Text(), console=out, refresh_per_second=4, transient=False)
        self._shown = 0
        self._waiting: list[Remark] = []
        self._clipped: set[str] = set()
        self._said: set[str] = set()

    def __enter__(self) -> "Screen":
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warn(self._waiting)
        if self._out.is_terminal:
            self._live.stop()

    def show(self, news: News) -> None:
        """Show what is new."""
        if news.stage:
            self._stage(news.stage)
        clipped = [one for one in news.remarks if one.message.startswith(CLIPPED)]
        self._warn([one for one in news.remarks if one not in clipped])
        self._waiting += [one for one in clipped if one.fields.get("tensor") not in self._clipped]
        if news.status is not None:
            if news.status.history and self._waiting:  # first: the news may be of several rounds
                self._warn(self._waiting)
                self._clipped |= {str(one.fields.get("tensor")) for one in self._waiting}
                self._waiting = []
            self._rounds(news.status)

    def _stage(self, stage: str) -> None:
        if self._out.is_terminal:
            self._live.update(Text(f"{stage} ..."))
        else:
            self._out.print(f"{stage} ...")

    def _warn(self, remarks: list[Remark]) -> None:
        for sentence in sentences(remarks):
            said = (one.message for one in remarks if sentence.endswith(one.message))
            key = next(said, sentence.partition(": ")[2])  # the same from another node, or in a later round, is no news
            if key not in self._said:
                self._said.add(key)
                self._out.print(f"! {sentence}", style="yellow", soft_wrap=True)

    def _rounds(self, status: services_pb2.GetStatusResponse) -> None:
        history = [Round.of(done) for done in status.history]
        last = history[-1].round if history else 0
        if self._out.is_terminal:
            doing = status.phase if last < status.rounds else "finished"
            self._bar.update(self._task, description=doing, completed=last, total=status.rounds)
            self._live.update(Group(rounds_table(status), hops(status), self._bar))
        for done in history:
            if done.round > self._shown and not self._out.is_terminal:
                self._out.print(line_of(done, int(status.rounds)))
        self._shown = max(self._shown, last)


def line_of(done: Round, rounds: int) -> str:
    """Say a round in a line."""
    if not done.cohort:
        return f"round {done.round} of {rounds}: abandoned after {done.attempts} attempts"
    accuracy = "" if done.accuracy is None else f"accuracy {done.accuracy:.3f}, "
    return f"round {done.round} of {rounds}: {accuracy}{done.cohort} silos, {done.seconds:.1f} s"
