"""A whole federation in one process: the same numbers as the nodes compute, without sockets.

Silos train, encode, add noise and masks, the hops take their masks off the sum, the aggregator decodes it and makes the
next model, all with the functions of the core that the nodes use. From the same task options the models are those of a
networked run, bit for bit, as long as torch computes with one thread in each process.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from silomix.models.simulation.sums import Sums, Update, generator, plain_mean
from silomix.models.simulation.workers import Silos, SimulationError, Turn
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import Fault, UserError
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.learning.noise import clip
from silomix.runtime.core.learning.optimise import Optimiser, combine, step
from silomix.runtime.core.learning.update import update_of, weight_of
from silomix.runtime.core.numbers.codec import Clips
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Array, Schema
from silomix.runtime.core.policy import AUTO, Policy, UpdateKind
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.store.modelfile import model_digest
from silomix.runtime.task import Tensors

HOPS = 2
"""Hops of the simulated chain: masks cancel whatever their number, so it shows in the time only."""


@dataclass(frozen=True)
class State:
    """What a simulation goes on from: the last round that is done, its model, and the server optimiser's state."""

    round: int
    model: dict[str, Array]
    optimiser: dict[str, Array] = field(default_factory=dict)
    previous: dict[str, Array] | None = None
    """The model before that one, if bounds follow from how far it has moved."""


@dataclass(frozen=True)
class SimulatedRound:
    """All that happened in a round, seen from above: an experiment may look where no node can."""

    round: int
    cohort: tuple[int, ...]
    """The silos that took part, by number from 0."""
    before: Tensors
    trained: tuple[Tensors, ...]
    """Each silo's whole model after its training, in the order of the cohort."""
    after: Tensors
    metrics: dict[str, float]
    """What the task measured of the model after the round; empty if it was not measured."""
    seconds: dict[str, float]
    """Time by phase. `train` is the time in which at least one silo trained; `total` is the whole round."""
    training: tuple[dict[str, float], ...] = ()
    """What each silo measured of its own training."""
    clipped: int = 0
    """Values beyond their bound, over all silos."""
    state: State | None = field(default=None, repr=False)
    """What the next round goes on from."""
    bounds: tuple[float, ...] = ()
    """What each tensor's values were scaled by and clipped to."""

    @property
    def training_share(self) -> float:
        """The share of the round that was spent in the task's own training."""
        return self.seconds["train"] / self.seconds["total"]


def simulate(
    policy: Policy,
    silos: int,
    *,
    seed: int = 0,
    protect: bool = True,
    vanilla: bool = False,
    rounding: Callable[[Array], Array] | None = None,
    workers: int = 1,
    evaluate_every: int = 1,
    federation: Federation | None = None,
    start: State | None = None,
) -> Iterator[SimulatedRound]:
    """Run the policy's rounds, and yield each when it is done.

    seed            of all that is chance here and not the task's: masks, noise, groups, who is drawn
    protect         False spares the masks, which cancel: the model is the same
    vanilla         True for the mean of the floats, without any encoding: what accuracy is compared with
    rounding        with vanilla: what becomes of each tensor before the mean, for encodings that are not ours
    workers         processes that train; the models are the same for any number
    evaluate_every  measure every so many rounds, and the last; 0 for never
    federation      whose names and keys draw the silos of a round; by default one made of the seed
    start           where to go on, from an earlier run's `SimulatedRound.state`

    >>> import silomix
    >>> options = {"silos": 5, "model": "linear", "alpha": 1.0}
    >>> policy = silomix.Policy(task="silomix.models.digits:task", task_options=options, rounds=3)
    >>> accuracies = [done.metrics["accuracy"] for done in silomix.simulate(policy, silos=5)]
    >>> len(accuracies), accuracies[-1] > 0.8
    (3, True)
    """
    conflict = policy.conflict()
    if conflict is not None:
        raise UserError("policy.{}: {}".format(*conflict))
    if federation is None:
        federation = pretend(policy, silos, seed)
    with Silos(policy.task, policy.task_options, workers) as team:
        schema = team.judge.schema()
        state = start or State(0, team.judge.initial(), Optimiser.of(policy).start(schema))
        rounds = _Rounds(federation, schema, seed, protect=protect, vanilla=vanilla, rounding=rounding)
        team.load(silos)
        if not vanilla:
            rounds.sums.warm(state.model)
        for round_ in range(state.round + 1, policy.rounds + 1):
            due = evaluate_every > 0 and (round_ % evaluate_every == 0 or round_ == policy.rounds)
            done = rounds.run(state, team, measure=due)
            assert done.state is not None
            state = done.state
            yield done


def pretend(policy: Policy, silos: int, seed: int, hops: int = HOPS) -> Federation:
    """Make a federation of nodes that do not exist, named as `silomix init` names them, with keys made of the seed."""
    silo_names = [f"silo-{i:0{max(2, len(str(silos)))}}" for i in range(1, silos + 1)]

    def member(name: str) -> Member:
        return Member(name, digest("simulated", seed, name))

    return Federation(
        "simulated",
        member("aggregator"),
        tuple(member(f"shuffler-{i}") for i in range(1, hops + 1)),
        tuple(member(name) for name in silo_names),
        policy,
    )


class _Clock:
    """Adds up the seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.began = self._last = time.monotonic()

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


class _Rounds:
    """How a round is computed."""

    def __init__(
        self,
        federation: Federation,
        schema: Schema,
        seed: int,
        *,
        protect: bool,
        vanilla: bool,
        rounding: Callable[[Array], Array] | None,
    ) -> None:
        self.federation, self.policy, self.schema, self.seed = federation, federation.policy, schema, seed
        self.vanilla, self.rounding = vanilla, rounding
        self.change = self.policy.update is UpdateKind.DELTA
        masked = protect and self.policy.level is not Level.TRUSTED
        self.sums = Sums(federation, schema, seed, masked=masked)

    def run(self, state: State, team: Silos, *, measure: bool) -> SimulatedRound:
        """Compute one round."""
        clock = _Clock()
        round_, before = state.round + 1, _frozen(state.model)
        numbers = {name: i for i, name in enumerate(self.federation.silo_names)}
        model = model_digest(self.schema, before) if self.federation.drawn < len(numbers) else b""
        cohort = tuple(numbers[name] for name in self.federation.draw(round_, model))
        bounds = bounds_of(self.policy, self.schema, before, state.previous)
        self.sums.begin(bounds)
        turns = team.train(cohort, before, round_)
        clock.lap("wait")
        clips = Clips()
        try:
            groups = []
            for group in self._groups(len(cohort), round_):
                updates = self._updates(before, [(cohort[i], turns[i]) for i in group])
                if self.vanilla:
                    groups.append(plain_mean(self.schema, round_, updates, self.rounding))
                else:
                    groups.append(self.sums.mean(before, round_, updates, clips, clock.lap))
            mean = combine(groups, self.schema, self.policy.server)
            after, kept = step(
                Optimiser.of(self.policy), self.schema, before, mean, state.optimiser, change=self.change
            )
        except Fault as fault:
            raise SimulationError(f"round {round_}: {fault}") from fault
        clock.lap("apply")
        metrics = team.evaluate(_frozen(after)) if measure else {}
        clock.lap("evaluate")
        seconds = clock.seconds
        seconds["train"] = _covered(turns)
        seconds["wait"] -= seconds["train"]  # models on their way to other processes and back
        seconds["total"] = time.monotonic() - clock.began
        return SimulatedRound(
            round_,
            cohort,
            before,
            tuple(turn.trained.tensors for turn in turns),
            after,
            metrics,
            seconds,
            tuple(turn.trained.metrics for turn in turns),
            clips.total,
            State(round_, after, kept, before if self.policy.bound == AUTO else None),
            bounds,
        )

    def _updates(self, before: Tensors, turns: Sequence[tuple[int, Turn]]) -> Iterator[Update]:
        """Yield what each silo encodes."""
        policy, plan = self.policy, self.federation.plan
        for silo, turn in turns:
            update = update_of(self.schema, before, turn.trained.tensors, change=self.change)
            if policy.clip_norm:
                update = clip(update, self.schema, policy.bound, plan.v, policy.clip_norm)
            yield silo, update, weight_of(turn.trained.examples, plan.weight_levels)

    def _groups(self, silos: int, round_: int) -> list[list[int]]:
        """Partition the cohort at random into groups of at least the policy's size; one group if it has none."""
        size = self.policy.group_size
        if not size:
            return [list(range(silos))]
        order = generator("groups", self.seed, round_).permutation(silos)
        return [sorted(int(i) for i in part) for part in np.array_split(order, max(1, silos // size))]


def _frozen(model: Mapping[str, Array]) -> dict[str, Array]:
    """Return views that nobody can write to, as what comes over the wire is."""
    views = {name: array.view() for name, array in model.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _covered(turns: Sequence[Turn]) -> float:
    """Return the time in which at least one silo trained: the length of the union of their turns."""
    seconds, until = 0.0, 0.0
    for turn in sorted(turns, key=lambda turn: turn.began):
        seconds += max(0.0, turn.ended - max(turn.began, until))
        until = max(until, turn.ended)
    return seconds
