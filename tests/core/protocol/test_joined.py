"""All cores joined without a network, with real masks and bodies: the sum is that of the cohort, each silo once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.core.protocol.federations import AGGREGATOR, MODEL, SCHEMA, cohort, federation, identity, rng, signed
from tests.core.protocol.hops import duplicate

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import Secret, commitment, mask_stream, unseal
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import (
    Cohort,
    Evidence,
    Header,
    Manifest,
    Participant,
    body_root,
    chunk_digest,
    trailer_digest,
)
from silomix.runtime.core.protocol.rules import layout


def measurement(index: int) -> int:
    """The integer that a silo sends in every value: in base 4, so that a digit of the sum is how often it counted."""
    return 1 << 2 * index


def apply(sign: int, body: Bytes, m: Manifest, layer: int, seeds: Iterable[Secret]) -> None:
    """Add masks to a body, or take them off."""
    shape = layout(m)
    for seed in seeds:
        stream = mask_stream(seed, m.context(layer), m.plan.moduli)
        for i in range(shape.chunks):
            stream.apply(shape.part(body, i), i, shape.length(i), sign)


def planes_of(body: Bytes, m: Manifest) -> list[list[memoryview]]:
    """The planes of each chunk of a body."""
    shape = layout(m)
    return [shape.planes(shape.part(body, i).data, i) for i in range(shape.chunks)]


def opened(h: Header, m: Manifest, name: str, private: Secret) -> Secret:
    """Open the seed of a header that is for this node."""
    layer = m.layer(name)
    sealed = next(s for s in h.seeds if s.recipient == name)
    seed = unseal(sealed.sealed, private, m.context(layer))
    if commitment(seed, m.context(layer)) != sealed.commitment:
        raise PeerFault(Reason.SEAL_BROKEN, "another seed was committed to")
    return seed


@dataclass
class Hop:
    """A shuffler: its core, its journal, and the vectors that its process would hold."""

    name: str
    net: "Net"
    up: bool = True
    facts: list[Any] = field(default_factory=list)
    sent: list[tuple[str, ...]] = field(default_factory=list)
    aborted: list[Reason] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.core = shuffler.Shuffler(self.net.f, identity(self.name), self.net.rng)
        for fact in self.facts:
            self.core.recall(duplicate(fact))
        self.total: Bytes | None = None
        self.seeds: dict[bytes, Secret] = {}
        self.accuses: list[Evidence] = []

    def step(self, event: shuffler.Event, body: Bytes | None = None) -> list[shuffler.Effect]:
        effects = self.core.step(event)
        for effect in effects:
            match effect:
                case Remember(fact):
                    self.facts.append(duplicate(fact))
                case shuffler.Begin(m):
                    self.total, self.seeds = layout(m).body(), {}
                case shuffler.Pass(h, key):
                    effects = effects + self.take_header(h, key)
                case shuffler.Accuse(evidence):
                    self.accuses.append(evidence)
                case shuffler.Count(h):
                    assert self.total is not None
                    assert body is not None
                    for i, planes in enumerate(planes_of(body, self.net.manifest)):
                        layout(self.net.manifest).add(self.total, i, planes)
                    effects = effects + self.step(shuffler.Counted(h))
                case shuffler.Release(c):
                    self.release(c)
                case shuffler.Abort(fault):
                    self.aborted.append(fault.reason)
        return effects

    def take_header(self, h: Header, key: Secret | None) -> list[shuffler.Effect]:
        """Open what is ours, and pass the header on; if that is refused with evidence, look at it and go on."""
        if key is not None:
            try:
                self.seeds[h.digest] = opened(h, self.net.manifest, self.name, key)
            except PeerFault:
                return self.step(shuffler.Unopened(h))
        evidence = self.net.relay_header(self.name, h)
        if evidence is None:
            return []
        effects = self.step(shuffler.EvidenceIn(evidence))
        self.accuses.append(evidence)
        return effects

    def release(self, c: Cohort) -> None:
        assert self.total is not None
        m = self.net.manifest
        wanted = [self.seeds[p.header] for p in c.participants if self.seeds]
        apply(-1, self.total, m, m.layer(self.name), wanted)
        self.sent.append(c.silos)
        self.net.relay_sum(self.name, c, self.total)


class Net:
    """One aggregator, its hops and silos, and a clock that only tests move."""

    def __init__(self, silos: int = 5, hops: int = 3, **policy: Any) -> None:
        self.f: Federation = federation(silos, hops, **{"precision": 6, "quorum": 1.0, **policy})
        self.rng = rng((silos, hops, sorted(policy)))
        self.now = 0.0
        self.hops = {name: Hop(name, self) for name in self.f.chain}
        self.silos = {name: silo.Silo(self.f, identity(name)) for name in self.f.silo_names}
        self.core = aggregating.Aggregator(self.f, identity(AGGREGATOR), self.rng)
        self.seeds: dict[bytes, Secret] = {}
        self.models: list[dict[int, int]] = []
        self.gave_up: list[aggregating.GiveUp] = []
        self.accuses: list[Evidence] = []
        self.lost_sums = 0
        self.run(aggregating.Start(MODEL, SCHEMA, self.now))

    @property
    def manifest(self) -> Manifest:
        assert self.core.manifest is not None
        return self.core.manifest

    def run(self, event: aggregating.Event) -> None:
        """Let the aggregator decide, and carry out what it decides, calls to hops included."""
        for effect in self.core.step(event):
            match effect:
                case aggregating.AskKeys():
                    self.ask(effect)
                case aggregating.OpenAt(m):
                    self.seeds = {}
                    for hop in self.hops.values():
                        if hop.up:
                            hop.step(shuffler.Open(m, self.now))
                            self.run(aggregating.OpenedAt(hop.name, m.digest, self.now))
                        else:
                            self.run(aggregating.HopFailed(hop.name, "not reachable", self.now))
                case aggregating.Expand(h, key) if key is not None:
                    try:
                        self.seeds[h.digest] = opened(h, self.manifest, AGGREGATOR, key)
                    except PeerFault:
                        self.run(aggregating.Unopened(h))
                case aggregating.Accuse(evidence):
                    self.accuses.append(evidence)
                case aggregating.GiveUp():
                    self.gave_up.append(effect)
                case _:
                    pass

    def ask(self, effect: aggregating.AskKeys) -> None:
        for hop in self.hops.values():
            if not hop.up:
                self.run(aggregating.HopFailed(hop.name, "not reachable", self.now))
                continue
            known = self.core.hop_released.get(hop.name, 0)
            asked = shuffler.Prepare(self.f.digest, effect.round, effect.attempt, effect.silos, known, self.now)
            answer = hop.step(asked)[-1]
            assert isinstance(answer, shuffler.Keys)
            self.run(aggregating.KeysIn(hop.name, answer.keys, answer.last_released, self.now))

    def after(self, name: str) -> str:
        place = self.f.chain.index(name) + 1
        return self.f.chain[place] if place < len(self.f.chain) else AGGREGATOR

    def relay_header(self, sender: str, h: Header) -> Evidence | None:
        """Pass a header on; return what it is refused with, if it is."""
        target = self.after(sender)
        accuses = self.accuses if target == AGGREGATOR else self.hops[target].accuses
        known = len(accuses)
        if target == AGGREGATOR:
            self.run(aggregating.HeaderIn(h))
        elif self.hops[target].up:
            self.hops[target].step(shuffler.HeaderIn(h, sender))
        return accuses[-1] if len(accuses) > known else None

    def relay_sum(self, sender: str, c: Cohort, body: Bytes) -> None:
        target = self.after(sender)
        if target == AGGREGATOR:
            self.take(c, body)
        elif self.hops[target].up:
            self.hops[target].total = body.copy()
            self.hops[target].step(shuffler.CohortIn(c))
        else:
            self.lost_sums += 1

    def take(self, c: Cohort, body: Bytes) -> None:
        m = self.manifest
        self.run(aggregating.CohortIn(c))
        apply(-1, body, m, 0, [self.seeds[p.header] for p in c.participants if self.seeds])
        size = len(c.participants)
        aggregate = Codec(m.schema, m.bounds, m.plan, m.chunk_parameters).decode(body, size)
        sums = {round(float(x) * aggregate.weight * m.plan.v) for t in aggregate.tensors.values() for x in t.flat}
        assert len(sums) == 1  # the same in every value
        (total,) = sums
        self.models.append({i: total // 4**i % 4 for i in range(len(self.f.silos)) if total // 4**i % 4})
        self.run(aggregating.SumIn(m.digest))
        self.run(aggregating.SumApplied(m.digest, bytes([m.round]) * 32, size, self.now))

    def submit(self, *names: str, times: int = 1) -> None:
        """Announce the attempt to these silos, and let each send its body, once or several times."""
        m = self.manifest
        for name in names or self.f.silo_names:
            core = self.silos[name]
            core.step(silo.Announced(m))
            self.send(core.sealing(m, self.rng), name, m, times)

    def send(self, sealing: silo.Sealing, name: str, m: Manifest, times: int = 1) -> None:
        value = measurement(self.f.silo_names.index(name)) / m.plan.v
        tensors = {t.name: np.full(t.shape, value, np.float32) for t in m.schema.tensors}
        codec, shape = Codec(m.schema, m.bounds, m.plan, m.chunk_parameters), layout(m)
        body = shape.body()
        for _ in codec.encode(tensors, body=body):
            pass
        for layer, seed in sealing.seeds:
            apply(1, body, m, layer, [seed])
        root = body_root([chunk_digest(i, shape.start(i), planes) for i, planes in enumerate(planes_of(body, m))])
        signature = identity(name).sign(trailer_digest(sealing.header.digest, root))
        first = self.hops[m.chain[0]]
        receipts = []
        for _ in range(times):
            first.step(shuffler.HeaderIn(sealing.header, name))
            effects = first.step(shuffler.BodyIn(sealing.header, root, root, signature), body)
            receipts += [effect.receipt for effect in effects if isinstance(effect, shuffler.Acknowledge)]
        assert len(receipts) == times
        assert len(set(receipts)) == 1
        if self.core.manifest == m:
            assert self.silos[name].step(silo.ReceiptIn(receipts[0], root)) == [silo.Done(m)]

    def wait(self, seconds: float) -> None:
        """Let time pass for everybody."""
        self.now += seconds
        for hop in self.hops.values():
            if hop.up:
                hop.step(shuffler.Tick(self.now))
        self.run(aggregating.Tick(self.now))

    def once(self, *indices: int) -> dict[int, int]:
        return dict.fromkeys(indices, 1)


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("level", [Level.TRUSTED, Level.SEMI_HONEST])
def test_the_sum_has_every_silo_once(level: Level, hops: int) -> None:
    net = Net(hops=hops, level=level)
    for round_ in range(1, 5):
        net.submit()
        assert net.models == [net.once(0, 1, 2, 3, 4)] * round_
    assert net.core.phase is aggregating.Phase.FINISHED


def test_a_body_that_comes_again_counts_once() -> None:
    net = Net()
    net.submit("silo-1", "silo-2", times=3)
    net.submit("silo-3", "silo-4", "silo-5")
    assert net.models == [net.once(0, 1, 2, 3, 4)]


def test_a_silo_that_restarts_halfway_counts_once() -> None:
    """Its first header has been passed on and its mask expanded everywhere, and no body came of it."""
    net = Net()
    stale = net.silos["silo-2"].sealing(net.manifest, net.rng)
    net.hops["hop-1"].step(shuffler.HeaderIn(stale.header, "silo-2"))
    net.submit()
    assert net.models == [net.once(0, 1, 2, 3, 4)]


def test_a_silo_that_is_missing_at_the_deadline_is_not_in_the_sum() -> None:
    net = Net()
    net.submit("silo-1", "silo-2", "silo-4", "silo-5")
    began = net.silos["silo-3"].sealing(net.manifest, net.rng)
    net.hops["hop-1"].step(shuffler.HeaderIn(began.header, "silo-3"))  # gone in the middle of its stream
    assert not net.models
    net.wait(60)
    assert net.models == [net.once(0, 1, 3, 4)]
    net.submit()
    assert net.models[1] == net.once(0, 1, 2, 3, 4)


def test_too_few_silos_give_no_sum_and_the_attempt_is_repeated() -> None:
    net = Net()
    net.submit("silo-1", "silo-2")
    net.wait(60)
    assert net.hops["hop-1"].aborted == [Reason.COHORT_TOO_SMALL]
    net.wait(20)
    assert [g.attempt for g in net.gave_up] == [1]
    net.submit()
    assert net.models == [net.once(0, 1, 2, 3, 4)]


def lose_hop_2_after_hop_1_released(net: Net) -> None:
    """Attempt 1: silo 5 is late, hop 1 releases the others, and hop 2 is gone."""
    net.submit("silo-1", "silo-2", "silo-3", "silo-4")
    net.hops["hop-2"].up = False
    net.wait(60)
    assert net.hops["hop-1"].sent == [("silo-1", "silo-2", "silo-3", "silo-4")]
    assert (net.lost_sums, net.models) == (1, [])
    net.hops["hop-2"].up = True
    net.hops["hop-2"].restart()
    net.wait(20)
    assert net.manifest.attempt == 2


@pytest.mark.parametrize("level", [Level.TRUSTED, Level.SEMI_HONEST])
@pytest.mark.parametrize("restart", [False, True])
def test_a_retry_forms_the_same_cohort_again(restart: bool, level: Level) -> None:
    net = Net(level=level)
    lose_hop_2_after_hop_1_released(net)
    if restart:
        net.hops["hop-1"].restart()
        net.hops["hop-1"].step(shuffler.Open(net.manifest, net.now))
    net.submit("silo-1", "silo-2", "silo-3")
    assert not net.models
    with pytest.raises(PeerFault) as caught:
        net.submit("silo-5")  # it is here now, and must be left out of the sum
    assert caught.value.reason is Reason.ALREADY_RELEASED
    net.submit("silo-4")
    assert net.models == [net.once(0, 1, 2, 3)]
    net.submit()
    assert net.models[1] == net.once(0, 1, 2, 3, 4)


def test_a_retry_with_another_cohort_is_refused_and_the_round_abandoned() -> None:
    net = Net(attempts=2)
    lose_hop_2_after_hop_1_released(net)
    net.submit("silo-2", "silo-3", "silo-4")  # silo 1 is gone
    net.wait(60)
    assert net.hops["hop-1"].aborted == [Reason.ALREADY_RELEASED]
    assert len(net.hops["hop-1"].sent) == 1
    net.wait(20)
    assert [(g.attempt, g.abandoned) for g in net.gave_up] == [(1, False), (2, True)]
    assert (net.manifest.round, net.manifest.model) == (2, MODEL)
    net.submit()
    assert net.models == [net.once(0, 1, 2, 3, 4)]


def test_a_lying_hop_1_cannot_make_a_released_hop_2_release_another_cohort() -> None:
    """Hop 1 forgets what it released: hop 2 does not, so a difference of two sums is not to be had."""
    net = Net()
    net.submit("silo-1", "silo-2", "silo-3", "silo-4")
    net.hops["hop-3"].up = False
    net.wait(60)
    assert net.hops["hop-2"].sent == [("silo-1", "silo-2", "silo-3", "silo-4")]
    net.hops["hop-3"].up = True
    net.hops["hop-3"].restart()
    net.wait(20)
    net.hops["hop-1"].core.released.clear()
    with pytest.raises(PeerFault) as caught:
        net.submit()
    assert caught.value.reason is Reason.ALREADY_RELEASED
    assert len(net.hops["hop-2"].sent) == 1
    assert not net.models


def test_one_silo_is_never_unmasked_under_the_names_of_others() -> None:
    """Hop 1 and the aggregator in league send one silo's body as the sum of three."""
    net = Net(hops=2)
    m = net.manifest
    victim = net.silos["silo-1"].sealing(m, net.rng).header
    others = [net.silos[name].sealing(m, net.rng).header for name in ("silo-2", "silo-3")]
    for h in (victim, *others):
        net.hops["hop-2"].step(shuffler.HeaderIn(h, "hop-1"))
    names = ("silo-1", "silo-2", "silo-3")
    alone = signed(Cohort(m.digest, tuple(Participant(n, victim.digest) for n in names)), "hop-1")
    for c in (alone, cohort(m, [victim])):
        with pytest.raises(PeerFault):
            net.hops["hop-2"].step(shuffler.CohortIn(c))
    assert not net.hops["hop-2"].sent


def test_a_hop_that_never_answers_is_named_until_the_round_is_abandoned() -> None:
    net = Net(attempts=2)
    net.submit()
    assert len(net.models) == 1
    net.hops["hop-3"].up = False
    net.wait(80)
    net.wait(20)
    net.hops["hop-3"].up = True
    assert [(g.round, g.abandoned) for g in net.gave_up] == [(2, False), (2, True)]
    assert "hop-3: not reachable" in net.gave_up[1].why
