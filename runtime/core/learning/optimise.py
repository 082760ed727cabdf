"""What becomes of a round's mean: the server's optimisers, as pure functions with their state in the open.

A round gives the mean of what silos sent, or one mean for each group. `combine` makes one of several, and `step` makes
the next model of it: the mean itself (FedAvg), or a step of momentum, Adam or Yogi along the mean change (FedOpt, Reddi
et al. 2021, without bias correction, so that a state is tensors and nothing else). Buffers, such as a batch norm's
running variance, are always averaged: a step of Adam along them would mean nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.numbers.codec import Aggregate
from silomix.runtime.core.numbers.schema import Array, Dtype, Schema, TensorSpec, add, as_float, round_to
from silomix.runtime.core.policy import Policy, Server

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Optimiser:
    """The server's rule and its rates. `momentum` is the beta_1 of Adam and Yogi; `average` and `median` have none."""

    kind: Server = Server.AVERAGE
    lr: float = 1.0
    momentum: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3
    """Keeps the step finite where nothing has changed yet: about how small a change still counts."""

    @classmethod
    def of(cls, policy: Policy) -> "Optimiser":
        """The rule of a policy, from the keys that begin with `server`."""
        p = policy
        return cls(p.server, p.server_lr, p.server_momentum, p.server_beta2, p.server_epsilon)

    @property
    def slots(self) -> tuple[str, ...]:
        """What it remembers of each parameter from round to round."""
        match self.kind:
            case Server.AVERAGE | Server.MEDIAN:
                return ()
            case Server.MOMENTUM:
                return ("first",)
            case Server.ADAM | Server.YOGI:
                return ("first", "second")

    @property
    def takes_the_mean(self) -> bool:
        """Whether the next model is the mean itself, to the last bit."""
        return self.lr == 1.0 and self.kind in (Server.AVERAGE, Server.MEDIAN)

    def state_schema(self, schema: Schema) -> Schema:
        """Name the tensors of its state, for the file that is kept beside the model."""
        kept = [t for t in schema.tensors if not t.buffer]
        return Schema(tuple(TensorSpec(f"{slot}/{t.name}", t.shape, Dtype.F64) for slot in self.slots for t in kept))

    def start(self, schema: Schema) -> dict[str, Array]:
        """Return the state before round 1. The second moment starts at epsilon squared, as the paper has it."""
        first = {"first": 0.0, "second": self.epsilon**2}
        specs = self.state_schema(schema).tensors
        return {t.name: np.full(t.shape, first[t.name.partition("/")[0]]) for t in specs}


def combine(groups: Sequence[Aggregate], schema: Schema, kind: Server = Server.AVERAGE) -> dict[str, Array]:
    """Make one mean of the groups' means: their median, or their mean by weight. One group is left as it is."""
    if not groups:
        raise ValueError("a round has at least one group")
    if len(groups) == 1:
        return dict(groups[0].tensors)
    weights = np.array([g.weight for g in groups], np.float64)
    out: dict[str, Array] = {}
    for t in schema.tensors:
        values = np.stack([_double(g.tensors[t.name], t.dtype) for g in groups])  # (groups, *shape)
        middle = np.median(values, axis=0) if kind is Server.MEDIAN else np.average(values, axis=0, weights=weights)
        out[t.name] = round_to(np.asarray(middle), t.dtype)
    return out


def step(
    optimiser: Optimiser,
    schema: Schema,
    before: Mapping[str, Array],
    mean: Mapping[str, Array],
    state: Mapping[str, Array],
    *,
    change: bool,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Make the next model of the round's mean, and the next state of this one. Nothing is changed in place.

    `change` says that the mean is one of changes and not of whole models.
    """
    _check_state(optimiser, schema, state)
    after: dict[str, Array] = {}
    kept: dict[str, Array] = {}
    for t in schema.tensors:
        old, new = before[t.name], mean[t.name]
        if t.buffer or optimiser.takes_the_mean:
            after[t.name] = add(old, new, t.dtype) if change else new
            continue
        base = _double(old, t.dtype)
        delta = _double(new, t.dtype) if change else _double(new, t.dtype) - base
        moments = {slot: _double(state[f"{slot}/{t.name}"], Dtype.F64) for slot in optimiser.slots}
        direction, moments = _direction(optimiser, delta, moments)
        after[t.name] = round_to(base + optimiser.lr * direction, t.dtype)
        kept |= {f"{slot}/{t.name}": np.asarray(moment) for slot, moment in moments.items()}
    return after, {t.name: kept[t.name] for t in optimiser.state_schema(schema).tensors}


def _direction(
    optimiser: Optimiser, delta: Doubles, moments: Mapping[str, Doubles]
) -> tuple[Doubles, dict[str, Doubles]]:
    """Return which way to go, and the moments after going."""
    b1, b2 = optimiser.momentum, optimiser.beta2
    match optimiser.kind:
        case Server.AVERAGE | Server.MEDIAN:
            return delta, {}
        case Server.MOMENTUM:
            first = b1 * moments["first"] + delta
            return first, {"first": first}
        case Server.ADAM | Server.YOGI as kind:
            first, old = b1 * moments["first"] + (1 - b1) * delta, moments["second"]
            if kind is Server.ADAM:
                second = b2 * old + (1 - b2) * delta**2
            else:
                second = old - (1 - b2) * delta**2 * np.sign(old - delta**2)
            return first / (np.sqrt(second) + optimiser.epsilon), {"first": first, "second": second}


def _check_state(optimiser: Optimiser, schema: Schema, state: Mapping[str, Array]) -> None:
    wanted = {t.name: t.shape for t in optimiser.state_schema(schema).tensors}
    if {name: array.shape for name, array in state.items()} != wanted:
        raise LocalFault(
            Reason.SHAPE_MISMATCH,
            f"the state of the server's optimiser ({optimiser.kind}) is not this model's: "
            "put the file that was written with the model back",
        )


def _double(values: Array, dtype: Dtype) -> Doubles:
    return as_float(values, dtype).astype(np.float64)
