"""The registry of active attacks: each has a name, the rule that it breaks, an adversary, and what should come of it.

An attack is one function in a module of `attacks/active/acts/`, with `@attack(...)` above it. It gets a stage with
honest nodes, does what it does, and says what it got; the judgement is made here, once for all.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from silomix.attacks.active.witness import Refusal
from silomix.runtime.core.errors import UserError, nearest

if TYPE_CHECKING:
    from silomix.attacks.active.stage import Stage


class Rule(StrEnum):
    """What an attack tries to break."""

    R1 = "R1"
    R2 = "R2"
    R3 = "R3"
    AGREEMENT = "agreement"
    R4 = "R4"
    R5 = "R5"
    R6 = "R6"
    R7 = "R7"
    COHORT = "cohort"
    BINDINGS = "bindings"
    SUM = "sum"


MEANINGS = {
    Rule.R1: "the chain is the agreed one, in its order and length",
    Rule.R2: "rounds have one history, which every node knows",
    Rule.R3: "one cohort for one model, for ever",
    Rule.AGREEMENT: "no pad is shown before everybody has signed for one cohort, and none of a fenced attempt (R3)",
    Rule.R4: "nobody is left out on a bare word, and no key is one that everybody can open",
    Rule.R5: "a model is what the sums before have made of it",
    Rule.R6: "nothing that opens a body outlives its round",
    Rule.R7: "a peer's bytes cost little before it is known to be entitled to them, and no process ends by them",
    Rule.COHORT: "each hop counts the cohort for itself: every silo invited, under its own header, and enough of them",
    Rule.BINDINGS: "whatever is signed, sealed or masked serves for one purpose and one attempt",
    Rule.SUM: "the sum is what the silos sent",
}
"""What each rule says, in a sentence."""


class Outcome(StrEnum):
    """What came of an attack."""

    REFUSED = "refused"
    """An honest node said no, and the adversary got nothing."""
    USELESS = "useless"
    """It went through, and the adversary got nothing by it."""
    CONCEDED = "conceded"
    """It works, and the threat model says so."""
    OPEN = "open"
    """It works today; the rule that closes it is not built yet."""
    SUCCEEDED = "succeeded"
    """It works, and must not."""
    BROKEN = "broken"
    """The drill itself failed: this proves nothing."""


@dataclass(frozen=True)
class Loot:
    """What the adversary has got, as measured by the drill, which knows the truth."""

    gained: bool
    said: str
    """A sentence on it, for people."""
    refusals: tuple[Refusal, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    beyond: bool = False
    """Whether it is more than the threat model concedes, or not bounded as it says."""


@dataclass(frozen=True)
class Cast:
    """Who lies, and under which policy; all others are honest nodes. Attacks with the same cast share a stage."""

    aggregator: bool = True
    hops: tuple[str, ...] = ()
    silos: tuple[str, ...] = ()
    policy: tuple[tuple[str, Any], ...] = ()
    apart: tuple[str, ...] = ()
    """Honest hops that run in a process of their own, whose memory can be looked at."""
    genesis: str = ""
    """What the initial model is, if not the honest one: a "trap" for the victim, or of another "shape"."""
    pinned: bool = True
    """Whether the owners have agreed on the initial model."""
    alone: str = ""
    """The name of an attack that leaves a stage unfit for others, such as a silo that sits out afterwards."""


@dataclass(frozen=True)
class Attack:
    """One way to break a rule."""

    name: str
    rule: Rule
    adversary: str
    about: str
    expect: Outcome
    """What should come of it; `open` and `conceded` only count if the adversary gains by it."""
    cast: Cast
    run: "Callable[[Stage], Awaitable[Loot]]" = field(repr=False)
    bites: bool = True
    """Whether it must succeed when its rule is switched off."""
    closed_by: str = ""
    """For open ones: the rules that will close it. Then OPEN becomes REFUSED in its line, and nothing else changes."""


@dataclass(frozen=True)
class Result:
    """What came of one attack."""

    attack: Attack
    outcome: Outcome
    loot: Loot
    seconds: float

    @property
    def held(self) -> bool:
        """Whether honest nodes held, and the drill was one."""
        return self.outcome not in (Outcome.SUCCEEDED, Outcome.BROKEN)


ATTACKS: dict[str, Attack] = {}
"""All attacks, in the order in which they are listed."""


def attack(
    name: str,
    rule: Rule,
    adversary: str,
    expect: Outcome,
    cast: Cast,
    *,
    bites: bool | None = None,
    closed_by: str = "",
) -> "Callable[[Callable[[Stage], Awaitable[Loot]]], Callable[[Stage], Awaitable[Loot]]]":
    """Register the function below; its docstring's first line says what the attack is about."""

    def register(run: "Callable[[Stage], Awaitable[Loot]]") -> "Callable[[Stage], Awaitable[Loot]]":
        if name in ATTACKS:
            raise ValueError(f"there is an attack {name} already")
        about = (run.__doc__ or "").partition("\n")[0].removesuffix(".")
        must = bites if bites is not None else expect in (Outcome.REFUSED, Outcome.USELESS)
        ATTACKS[name] = Attack(name, rule, adversary, about, expect, cast, run, must, closed_by)
        return run

    return register


def judge(chosen: Attack, loot: Loot) -> Outcome:
    """Say what came of an attack."""
    if loot.beyond:
        return Outcome.SUCCEEDED
    if loot.gained:
        return chosen.expect if chosen.expect in (Outcome.CONCEDED, Outcome.OPEN) else Outcome.SUCCEEDED
    return Outcome.REFUSED if loot.refusals else Outcome.USELESS


def all_attacks() -> tuple[Attack, ...]:
    """Return every attack there is, in order."""
    from silomix.attacks.active import acts  # noqa: F401 - they register themselves

    order = list(Rule)
    return tuple(sorted(ATTACKS.values(), key=lambda one: order.index(one.rule)))


def find(names: Iterable[str]) -> tuple[Attack, ...]:
    """Look attacks up by name, or say what comes near."""
    known = {one.name: one for one in all_attacks()}
    for name in names:
        if name not in known:
            all_of_them = "`silomix attack active --list` names them all"
            raise UserError(f"there is no attack {name!r}{nearest(name, known)} {all_of_them}")
    return tuple(known[name] for name in dict.fromkeys(names))
