"""From the silos' frozen integers to the next model: one thing is changed at every step, and its author is named.

The steps are those of docs/protocol.md, sections 5 to 7, in their order. Everybody else is honest.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from silomix.attacks.tamper import registry
from silomix.attacks.tamper.drill import run_one
from silomix.attacks.tamper.registry import AppliesOtherSum, Ends, Misbehaviour
from silomix.attacks.tamper.ring import AGGREGATOR, Ring, federation
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.policy import Server
from silomix.runtime.core.protocol.check.said import CheckTranscript
from silomix.runtime.core.protocol.lineage import Transcript

SMALL = federation(3, 2, server=Server.MOMENTUM)
SILO, FIRST, LAST = "silo-2", "shuffler-1", "shuffler-2"
OTHER = Secret(bytes(range(32)))


class ShowsOtherPad(registry._Lie):
    """Shows another pad than it has committed to."""

    def shows(self, pad: Secret) -> Secret:
        """Choose anew."""
        return OTHER


def publishing(change: Callable[[Transcript, Bytes], tuple[Transcript, Bytes]]) -> type[registry._Lie]:
    """Make an aggregator that publishes something else than was released."""

    class Publishes(registry._Lie):
        def publishes(self, transcript: Transcript, body: Bytes) -> tuple[Transcript, Bytes]:
            return change(transcript, body)

    return Publishes


def flipped(transcript: Transcript, body: Bytes) -> tuple[Transcript, Bytes]:
    body[0] ^= 1
    return transcript, body


def unchecked(transcript: Transcript, body: Bytes) -> tuple[Transcript, Bytes]:
    check = transcript.check
    assert check is not None
    one, *others = check.statements
    forged = replace(one, scalars=(one.scalars[1], *one.scalars[1:]))
    return replace(transcript, check=CheckTranscript(check.tosses, (forged, *others))), body


def fewer(transcript: Transcript, body: Bytes) -> tuple[Transcript, Bytes]:
    cohort = replace(transcript.cohort, participants=transcript.cohort.participants[:-1])
    return replace(transcript, cohort=cohort), body


class MakesOtherState(registry._Lie):
    """Makes another state of the server's optimiser of the sum."""

    def steps(self, state: dict[str, Any]) -> dict[str, Any]:
        """Change one value by one unit in the last place."""
        out = {name: np.array(values) for name, values in state.items()}
        first = next(iter(out.values())).reshape(-1)
        first[0] = np.nextafter(first[0], first.dtype.type(9))
        return out


WALK: list[tuple[str, str, type[registry._Lie], Ends]] = [
    ("the seed that it seals", SILO, registry.SealsOtherSeed, Ends.LEFT_OUT),
    ("the body under its root", SILO, registry.SendsOtherBody, Ends.REFUSED),
    ("which bodies are added", FIRST, registry.DropsSilo, Ends.PROVEN),
    ("how often a body is added", FIRST, registry.AddsTwice, Ends.PROVEN),
    ("who is in the cohort", FIRST, registry.ReplacesCohort, Ends.REFUSED),
    ("which bodies it signs for", FIRST, registry.SaysOtherIntake, Ends.REFUSED),
    ("what it took in", LAST, registry.SaysOtherIntake, Ends.REFUSED),
    ("whose masks come off", LAST, registry.DropsSilo, Ends.PROVEN),
    ("a residue of what goes out", LAST, registry.FlipsResidue, Ends.PROVEN),
    ("a blinder of what goes out", FIRST, registry.FlipsBlinder, Ends.PROVEN),
    ("the root of what goes out", LAST, registry.SignsOtherRoot, Ends.REFUSED),
    ("the trail, told twice", LAST, registry.Equivocates, Ends.PROVEN),
    ("its share of the coin", SILO, registry.ShowsOtherShare, Ends.PROVEN),
    ("the coin", AGGREGATOR, registry.TossesOwnCoin, Ends.REFUSED),
    ("the scalars of its body", SILO, registry.StatesFalseIntake, Ends.PROVEN),
    ("the scalars of a mask", SILO, registry.StatesFalseScalars, Ends.PROVEN),
    ("the scalars of what came in", FIRST, registry.StatesFalseIntake, Ends.PROVEN),
    ("the scalars of what went out", LAST, registry.StatesFalseScalars, Ends.PROVEN),
    ("the scalars of its pad", FIRST, registry.LiesAboutPad, Ends.PROVEN),
    ("the scalars of what arrived", AGGREGATOR, registry.ConcealsFalseScalars, Ends.PROVEN),
    ("the pad that it shows", LAST, ShowsOtherPad, Ends.REFUSED),
    ("the sum that it publishes", AGGREGATOR, publishing(flipped), Ends.REFUSED),
    (
        "a pad that it publishes",
        AGGREGATOR,
        publishing(lambda t, b: (replace(t, pads=(OTHER, *t.pads[1:])), b)),
        Ends.REFUSED,
    ),
    (
        "a seed that it publishes",
        AGGREGATOR,
        publishing(lambda t, b: (replace(t, seeds=(OTHER, *t.seeds[1:])), b)),
        Ends.REFUSED,
    ),
    ("the cohort that it publishes", AGGREGATOR, publishing(fewer), Ends.REFUSED),
    ("the check that it publishes", AGGREGATOR, publishing(unchecked), Ends.REFUSED),
    ("the next model", AGGREGATOR, AppliesOtherSum, Ends.REFUSED),
    ("the server's state", AGGREGATOR, MakesOtherState, Ends.REFUSED),
]


@pytest.mark.parametrize(("what", "who", "lie", "ends"), WALK, ids=[f"{who} changes {what}" for what, who, *_ in WALK])
def test_whatever_is_changed_its_author_is_named_and_nobody_else(
    what: str, who: str, lie: type[registry._Lie], ends: Ends
) -> None:
    silos = 4 if ends is Ends.LEFT_OUT or who == SILO else 3  # a silo that sits out must leave enough others
    f = SMALL if silos == 3 else federation(4, 2, server=Server.MOMENTUM)
    found = run_one(Misbehaviour(what, who, lie, ends, ""), f=f)
    assert not found.missed, found
    assert found.named == (who,), found
    if ends is Ends.PROVEN and who != SILO:
        assert not found.applied


def test_if_nothing_is_changed_the_model_follows_from_the_integers() -> None:
    ring = Ring(f=SMALL).run()
    assert not ring.refusals
    assert not ring.verdicts
    for one in ring.silos.values():
        assert ring.digests(one.model, one.server) == ring.digests(ring.model, one.server)
    m = ring.lead.sums[1, 1][0].manifest
    last = ring.lead.core.log.last
    assert last is not None
    assert (last.model_before, last.attempts[-1].manifest) == (m.model, m.digest)
    assert last.model_after != m.model
