"""A hop's machine with a journal, driven as its process drives it, that can be killed between any two effects."""

from collections import deque
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import (
    LOGS,
    agreement,
    applied,
    body,
    extended,
    federation,
    headers,
    identity,
    manifest,
    past,
    private,
    ready,
    rng,
)

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest
from silomix.runtime.core.protocol.release import Ready
from silomix.runtime.core.protocol.roundlog import Record, RoundLog
from silomix.runtime.core.protocol.shuffler import (
    Count,
    Counted,
    Delivered,
    Effect,
    Event,
    Fact,
    HeaderIn,
    KeysGone,
    KeysMade,
    Open,
    Padded,
    PadGone,
    Prepare,
    ReadyIn,
    RecordIn,
    Release,
    Reveal,
    RevealIn,
    Shuffler,
    Stored,
)

F = federation()
SILOS = F.silo_names
NEVER = 10**6


def snapshot(machine: Shuffler) -> dict[str, Any]:
    """Everything that a machine knows, so that two moments can be compared."""
    state = {name: copy(value) for name, value in vars(machine).items()}
    state["log"] = list(machine.log.records)
    if machine.attempt is not None:
        state["attempt"] = {name: copy(value) for name, value in vars(machine.attempt).items()}
    return state


def duplicate(fact: Any) -> Any:
    """A fact as a journal gives it back: a secret that is overwritten in memory is not overwritten there."""
    if isinstance(fact, KeysMade):
        return replace(fact, keys=tuple((silo, s.copy()) for silo, s in fact.keys))
    if isinstance(fact, Padded):
        return replace(fact, pad=fact.pad.copy())
    return fact


def written(journal: list[Any], fact: Any) -> list[Any]:
    """The journal with one more fact: what is gone is deleted, and a round has one record."""
    match fact:
        case KeysGone(round_, attempt):
            return [f for f in journal if not (isinstance(f, KeysMade) and (f.round, f.attempt) == (round_, attempt))]
        case PadGone():
            return [f for f in journal if not (isinstance(f, Padded) and f.manifest == fact.manifest)]
        case Stored(record):
            kept = [f for f in journal if not (isinstance(f, Stored) and f.record.round == record.round)]
            return [*kept, fact]
        case _:
            return [*journal, duplicate(fact)]


class Hop:
    """A machine with a journal. With `known` keys it draws those that the tests' manifests have."""

    def __init__(self, name: str, f: Federation = F, *, known: bool = True) -> None:
        self.f, self.name, self.known = f, name, known
        self.journal: list[Fact] = []
        self.lives = 0
        self.restart()
        self.feed(RecordIn(past(f).records[0]))

    def restart(self) -> None:
        """Die, and come back with what was remembered and nothing else."""
        self.lives += 1
        self._random = rng((self.name, self.lives))
        self._drawn: deque[bytes] = deque()
        self.core = Shuffler(self.f, identity(self.name), self._draw)
        for fact in self.journal:
            self.core.recall(duplicate(fact))

    def _draw(self, size: int) -> bytes:
        return self._drawn.popleft() if self._drawn else self._random(size)

    def feed(self, event: Event, survives: int = NEVER) -> list[Effect]:
        """Step, and carry so many effects out before the hop is killed; a refusal must have changed nothing."""
        if self.known and isinstance(event, Prepare):
            keys = (private(self.name, silo, event.round, event.attempt) for silo in event.silos)
            self._drawn = deque(key.value for key in keys)
        before = snapshot(self.core)
        try:
            todo = deque(self.core.step(event))
        except PeerFault:
            assert snapshot(self.core) == before
            raise
        finally:
            self._drawn.clear()
        done: list[Effect] = []
        learned: deque[Event] = deque()
        while todo:
            if len(done) == survives:
                self.restart()
                return done
            effect = todo.popleft()
            done.append(effect)
            if isinstance(effect, Remember):
                self.journal = written(self.journal, effect.fact)
            if isinstance(effect, Count):
                learned.append(Counted(effect.header))
            if learned and not todo:
                todo.extend(self.core.step(learned.popleft()))
        return done

    def refuses(self, event: Event) -> Reason:
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value.reason

    @property
    def log(self) -> RoundLog:
        """The hop's history, for a manifest that goes on from it."""
        return LOGS[self.core.log.head]

    def catch_up(self, head: bytes) -> None:
        """Have the hop store the records up to this one."""
        for record in LOGS[head].records[self.core.log.round :]:
            self.feed(RecordIn(record))

    def prepare(self, m: Manifest, now: float = 0.0) -> None:
        """Make the keys of an attempt, if the hop still makes any for it."""
        silos = self.f.draw(m.applied + 1, m.model)
        try:
            self.catch_up(m.head)
            self.feed(Prepare(self.f.digest, m.round, m.attempt, silos, self.core.last_released, m.head, now))
        except PeerFault:
            return

    def open(self, m: Manifest, now: float = 0.0) -> list[Effect]:
        """Make the keys of an attempt, and open it."""
        self.prepare(m, now)
        return self.feed(opening(m, now))

    def refuses_to_open(self, m: Manifest) -> Reason:
        self.prepare(m)
        return self.refuses(opening(m))

    def submit(self, *of: Header) -> list[Effect]:
        """Take headers and bodies in, and return the effects of the last one."""
        effects: list[Effect] = []
        for h in of:
            self.feed(HeaderIn(h, h.silo))
            effects = self.feed(body(h))
        return effects

    def relayed(self, m: Manifest, of: list[Header]) -> None:
        for h in of:
            self.feed(HeaderIn(h, m.chain[m.chain.index(self.name) - 1]))

    # The release

    def ready(self, m: Manifest, c: Cohort) -> Ready:
        """What all sign for this attempt, with the pad that this hop has remembered."""
        padded = self.core.padded[m.digest]
        return ready(m, c, {self.name: padded.pad}, padded.grouping)

    def agree(self, m: Manifest, c: Cohort) -> Ready:
        """Have the hop sign for the release."""
        agreed = self.ready(m, c)
        self.feed(ReadyIn(m.digest, agreed.trails))
        return agreed

    def show(self, m: Manifest, c: Cohort) -> Ready:
        """Bring an attempt whose sum has left this hop to the point at which it shows its pad."""
        agreed = self.agree(m, c)
        effects = self.feed(RevealIn(m.digest, agreement(agreed.digest, m.chain)))
        assert isinstance(effects[-1], Reveal)
        return agreed

    def conclude(self, m: Manifest, c: Cohort, **changes: Any) -> Record:
        """Bring an attempt whose sum has left this hop to its record: applied, and the next model follows."""
        record = applied(self.log, m, self.show(m, c), c.silos, **changes)
        self.feed(Delivered(m.digest))
        self.feed(RecordIn(record))
        extended(self.log_before(record), record)
        return record

    def log_before(self, record: Record) -> RoundLog:
        return LOGS[record.previous]


def opening(m: Manifest, now: float = 0.0) -> Open:
    """The call that opens an attempt: with the record that its history ends with."""
    head = LOGS[m.head].last
    assert head is not None
    return Open(m, head, now)


def opened(name: str = "hop-1", f: Federation = F, **changes: Any) -> tuple[Hop, Manifest]:
    hop, m = Hop(name, f), manifest(f, **changes)
    hop.open(m)
    return hop, m


def passed_on(effects: list[Effect]) -> Release | None:
    """What leaves a hop under its pad, if anything does."""
    return next((e for e in effects if isinstance(e, Release)), None)


def released(effects: list[Effect]) -> tuple[str, ...] | None:
    """The cohort whose padded sum leaves a hop."""
    found = passed_on(effects)
    return None if found is None else found.cohort.silos


def release_round(hop: Hop, round_: int, f: Federation = F) -> Manifest:
    """A whole round at hop 1, from its keys to its record."""
    m = manifest(f, round_, log=hop.log)
    hop.open(m)
    found = passed_on(hop.submit(*headers(m, f)))
    assert found is not None
    assert found.cohort.silos == f.silo_names
    hop.conclude(m, found.cohort)
    return m
