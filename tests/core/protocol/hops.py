"""A hop's machine with a journal, driven as its process drives it, that can be killed between any two effects."""

from collections import deque
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import body, federation, headers, identity, manifest, private, rng

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.core.protocol.shuffler import (
    Count,
    Counted,
    Effect,
    Event,
    Fact,
    HeaderIn,
    KeysGone,
    KeysMade,
    Open,
    Prepare,
    Release,
    Shuffler,
)

F = federation()
SILOS = F.silo_names
NEVER = 10**6


def snapshot(machine: Shuffler) -> dict[str, Any]:
    """Everything that a machine knows, so that two moments can be compared."""
    state = {name: copy(value) for name, value in vars(machine).items()}
    if machine.attempt is not None:
        state["attempt"] = {name: copy(value) for name, value in vars(machine.attempt).items()}
    return state


def duplicate(fact: Fact) -> Fact:
    """A fact as a journal gives it back: a secret that is overwritten in memory is not overwritten there."""
    if isinstance(fact, KeysMade):
        return replace(fact, keys=tuple((silo, Secret(bytes(bytearray(s.value)))) for silo, s in fact.keys))
    return fact


class Hop:
    """A machine with a journal. With `known` keys it draws those that the tests' manifests have."""

    def __init__(self, name: str, f: Federation = F, *, known: bool = True) -> None:
        self.f, self.name, self.known = f, name, known
        self.journal: list[Fact] = []
        self.lives = 0
        self.restart()

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
                self._write(effect.fact)
            if isinstance(effect, Count):
                learned.append(Counted(effect.header))
            if learned and not todo:
                todo.extend(self.core.step(learned.popleft()))
        return done

    def _write(self, fact: Fact) -> None:
        if isinstance(fact, KeysGone):
            gone = (fact.round, fact.attempt)
            self.journal = [f for f in self.journal if not (isinstance(f, KeysMade) and (f.round, f.attempt) == gone)]
        else:
            self.journal.append(duplicate(fact))

    def refuses(self, event: Event) -> Reason:
        with pytest.raises(PeerFault) as caught:
            self.feed(event)
        return caught.value.reason

    def prepare(self, m: Manifest, now: float = 0.0) -> None:
        """Make the keys of an attempt, if the hop still makes any for it."""
        silos = self.f.draw(m.round)
        try:
            self.feed(Prepare(self.f.digest, m.round, m.attempt, silos, self.core.last_released, now))
        except PeerFault:
            return

    def open(self, m: Manifest, now: float = 0.0) -> list[Effect]:
        """Make the keys of an attempt, and open it."""
        self.prepare(m, now)
        return self.feed(Open(m, now))

    def refuses_to_open(self, m: Manifest) -> Reason:
        self.prepare(m)
        return self.refuses(Open(m, 0.0))

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


def opened(name: str = "hop-1", f: Federation = F, **changes: Any) -> tuple[Hop, Manifest]:
    hop, m = Hop(name, f), manifest(f, **changes)
    hop.open(m)
    return hop, m


def released(effects: list[Effect]) -> tuple[str, ...] | None:
    return next((e.cohort.silos for e in effects if isinstance(e, Release)), None)


def release_round(hop: Hop, round_: int, f: Federation = F) -> Manifest:
    m = manifest(f, round_)
    hop.open(m)
    assert released(hop.submit(*headers(m, f))) == f.silo_names
    return m
