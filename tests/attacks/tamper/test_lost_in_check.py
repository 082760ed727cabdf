"""A hop that is lost in the middle of a tamper check: nobody waits for it, and nobody escapes a check by leaving."""

from typing import Any

from silomix.attacks.tamper.lies import Honest, Silent
from silomix.attacks.tamper.ring import Ring, federation
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.aggregator import HopGone, Phase
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Outcome

FOUR = federation(3, 4, minimum_hops=3, rounds=2)
LOST = "shuffler-3"


class Mute(Honest):
    """Does not answer one question, and changes what it passes on if it is told to."""

    def __init__(self, event: str, *, lies: bool = False) -> None:
        self.event, self.lies = event, lies

    def speaks(self, step: str) -> None:
        """Say nothing to that one."""
        if step == self.event:
            raise Silent

    def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
        """Take nothing off and put nothing on, or change a bit."""
        changed = vector.copy()
        changed[0] ^= self.lies
        return changed


def until(ring: Ring, phase: Phase) -> None:
    """Let everybody speak, and no time pass."""
    ring.settle()
    assert ring.lead.core.phase is phase


def gone(ring: Ring, name: str) -> list[Any]:
    """Have the aggregator hear that a hop is lost."""
    return ring.lead.step(HopGone(name, "it does not answer", ring.now))


def test_a_hop_that_is_lost_before_it_answers_the_coin_costs_that_round_at_once() -> None:
    ring = Ring({LOST: Mute("CoinIn")}, f=FOUR)
    until(ring, Phase.CHECKING)
    gone(ring, LOST)
    (up,) = ring.gave_up
    assert up.abandoned
    assert f"{LOST}: it does not answer" in up.why
    ring.run()
    assert [record.outcome for record in ring.lead.core.log.records[1:]] == [Outcome.ABANDONED, Outcome.APPLIED]
    last = ring.lead.core.log.last
    assert last is not None
    assert LOST not in last.attempts[-1].chain
    assert not ring.verdicts


def test_a_hop_that_has_answered_the_coin_does_not_end_the_check_by_leaving() -> None:
    """It may be the one that the others' answers convict."""
    ring = Ring({"silo-2": Mute("scalars"), LOST: Mute("", lies=True)}, f=FOUR)
    until(ring, Phase.CHECKING)
    assert LOST in ring.lead.core.hearing.statements
    assert gone(ring, LOST) == []
    assert ring.lead.core.phase is Phase.CHECKING
    ring.silos["silo-2"].lies = Honest()
    ring.again()
    ring.settle()
    assert [verdict.culprit for verdict in ring.verdicts] == [LOST]


def test_a_defence_that_cannot_come_any_more_is_not_waited_for() -> None:
    ring = Ring({LOST: Mute("ChargeIn", lies=True)}, f=FOUR)
    until(ring, Phase.BLAMING)
    assert ring.lead.core.hearing.finding.where == LOST
    assert gone(ring, "shuffler-1") == []  # another one's defence is still to come
    assert ring.lead.core.phase is Phase.BLAMING
    ring.lead.core.gone.clear()
    gone(ring, LOST)
    (up,) = ring.gave_up
    assert up.abandoned
    assert not ring.verdicts  # silence names nobody
    ring.run()
    assert ring.lead.core.log.records[2].outcome is Outcome.APPLIED
