"""`silomix run` at work: the federation, what it is compared with, the attack on it, and what is said at the end."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.start import board
from silomix.runtime.cli.start.screen import Screen
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.policy import Policy
from silomix.runtime.front.audit import audit
from silomix.runtime.front.run import Run, run
from silomix.runtime.local import interrupt_on_sigterm
from silomix.runtime.observe.remarks import sentences
from silomix.runtime.results import BEST, FINAL, HISTORY, RunFiles, find
from silomix.runtime.task import Option
from silomix.runtime.terminal import console, say, say_json

if TYPE_CHECKING:
    from silomix.attacks.audit.watch import Compared

PLOT = "accuracy"


@dataclass(frozen=True)
class Asked:
    """What `silomix run` was asked for."""

    task: str | Path
    silos: int | None = None
    shufflers: int = 2
    rounds: int | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    policy: Policy | None = None
    out: Path | None = None
    audit: bool = False
    vanilla: bool = False
    plot: str = "png"
    tensorboard: bool = False


def run_command(asked: Asked, *, as_json: bool) -> int:
    """Run a federation, write what came of it, and say where it is."""
    interrupt_on_sigterm()
    if asked.tensorboard:
        board.check()
    place, done = carry_out(asked)
    vanilla = without_protection(place) if asked.vanilla else {}
    if vanilla:
        place.keep({round_: {"vanilla_accuracy": value} for round_, value in vanilla.items()})
    picture = draw(place, done, vanilla, asked.plot)
    if asked.tensorboard:
        write_board(place, done, vanilla)
    found = attack(place) if asked.audit else None
    summary = summary_of(place, done, vanilla, picture)
    if as_json:
        say_json({**summary, **({} if found is None else {"verdict": found.json()})})
    else:
        tell(place, done, vanilla, picture)
        if found is not None:
            console().print(found.text(), style="bold" if found.protected else "bold red")
    whole = not done.abandoned and (found is None or found.protected)
    return Exit.DONE if whole else Exit.NO


def carry_out(asked: Asked) -> tuple[RunFiles, Run]:
    """Run the federation, with its progress on the terminal, and return it with what came of it."""
    out = asked.out
    if out is None:
        assert isinstance(asked.task, Path)
        out = find(asked.task).results
    elif isinstance(asked.task, str) and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(out, "", "is not empty, and no model is overwritten; give another --out, or move it away")
    with Screen(console(stderr=True)) as screen:
        done = run(
            asked.task,
            asked.silos,
            asked.rounds,
            out=out,
            shufflers=asked.shufflers,
            options=asked.options,
            policy=asked.policy,
            auditable=asked.audit,
            show=screen.show,
        )
    home = asked.task if isinstance(asked.task, Path) else out
    return RunFiles(find(home).home, out, find(home).federation), done


def without_protection(place: RunFiles) -> dict[int, float]:
    """Return the accuracy by round of the same training without protection: the mean of the floats."""
    from silomix.models.simulation.simulate import simulate

    federation = place.federation
    console(stderr=True).print("training without protection, to compare ...")
    workers = min(len(os.sched_getaffinity(0)), len(federation.silos))
    rounds = simulate(federation.policy, len(federation.silos), vanilla=True, workers=workers, federation=federation)
    return {one.round: one.metrics["accuracy"] for one in rounds}


def draw(place: RunFiles, done: Run, vanilla: Mapping[int, float], kind: str) -> Path | None:
    """Draw accuracy by round, if it can be drawn here."""
    if not kind:
        return None
    points = [(float(one.round), one.accuracy) for one in done.history if one.cohort and one.accuracy is not None]
    if done.accuracy_before is not None:
        points.insert(0, (0.0, done.accuracy_before))
    try:
        from silomix.models.simulation.plots import Line, Plot
        from silomix.models.simulation.plots import draw as draw_plot

        lines = [Line("silomix", tuple(points))]
        if vanilla:
            lines.append(Line("without protection", tuple((float(t), value) for t, value in vanilla.items())))
        path = place.results / f"{PLOT}.{kind}"
        draw_plot(Plot("accuracy by round", "round", "accuracy", tuple(lines)), path)
    except UserError as error:  # a run without pictures is a run
        console(stderr=True).print(f"! {error}", style="yellow")
        return None
    return path


def write_board(place: RunFiles, done: Run, vanilla: Mapping[int, float]) -> None:
    """Write the history for TensorBoard, with the comparison beside it."""
    writer = board.Board(place.results / board.DIRECTORY)
    for one in done.history:
        bits = one.bits_per_parameter if one.cohort else None
        numbers = {"accuracy": one.accuracy, "cohort": one.cohort, "seconds": one.seconds, "bits_per_parameter": bits}
        writer.write(one.round, {**numbers, "accuracy_without_protection": vanilla.get(one.round)})
    writer.close()


def attack(place: RunFiles) -> "Compared":
    """Attack a federation that has ended."""
    console(stderr=True).print("attacking what the server captured, and what it would have captured unprotected ...")
    return audit(place.home)


def summary_of(place: RunFiles, done: Run, vanilla: Mapping[int, float], picture: Path | None) -> dict[str, Any]:
    """Say what came of a run, for a program."""
    best, policy = done.best, place.federation.policy
    return {
        "rounds": len(done.history) - len(done.abandoned),
        "abandoned": done.abandoned,
        "silos": len(place.federation.silos),
        "hops": len(place.federation.shufflers),
        "level": str(policy.level),
        "seconds": round(done.seconds, 3),
        "accuracy": done.accuracy,
        "accuracy_before": done.accuracy_before,
        "best_accuracy": None if best is None else best.accuracy,
        "best_round": None if best is None else best.round,
        "vanilla_accuracy": vanilla[max(vanilla)] if vanilla else None,
        "model": str(place.results / FINAL),
        "best_model": None if best is None else str(place.results / BEST),
        "history": str(place.results / HISTORY),
        "plot": None if picture is None else str(picture),
        "logs": str(place.home),
        "remarks": sentences(done.remarks),
    }


def tell(place: RunFiles, done: Run, vanilla: Mapping[int, float], picture: Path | None) -> None:
    """Say what came of a run, and which file is the trained model."""
    f = place.federation
    made = len(done.history) - len(done.abandoned)
    say(f"{made} rounds of {len(f.silos)} silos in {done.seconds:.0f} s, level {f.policy.level}")
    if done.abandoned:
        say(f"abandoned, for want of silos or hops: round {', '.join(map(str, done.abandoned))}")
    best = done.best
    if done.accuracy is not None and best is not None:
        before = "" if done.accuracy_before is None else f" ({done.accuracy_before:.3f} before round 1)"
        say(f"accuracy {done.accuracy:.3f}{before}; the best was {best.accuracy:.3f} after round {best.round}")
    if vanilla:
        say(f"accuracy without protection {vanilla[max(vanilla)]:.3f}")
    say(f"the trained model: {place.results / FINAL}" + (f"; the best: {place.results / BEST}" if best else ""))
    say(f"for torch: silomix model export --config {place.results}")
    say(f"round by round: {place.results / HISTORY}" + ("" if picture is None else f", {picture}"))
    say(f"logs: {place.home}/*/log.txt")
