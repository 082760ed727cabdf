"""All cores joined without a network, with real masks, pads and bodies, and with journals: any node can be killed.

What one node says to another waits in a queue. A node that is killed loses what is in its memory and the calls that it
has under way; what it has remembered, and the files that a process would have kept, stay.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from tests.core.protocol.federations import AGGREGATOR, SCHEMA, federation, identity, rng
from tests.core.protocol.hops import duplicate, written

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import Secret, commitment, mask_stream, unseal
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.schema import Array
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.lineage import (
    Transcript,
    check_root,
    check_transcript,
    decode,
    next_model,
    uncover,
)
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import (
    Cohort,
    Evidence,
    Header,
    Manifest,
    body_root,
    chunk_digest,
    trailer_digest,
)
from silomix.runtime.core.protocol.release import PadContext, Trail, bodies_root, check_trails, pad_digest
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.store.modelfile import model_digest

Tensors = dict[str, Array]
ASKS_CHAIN = (aggregating.AskKeys, aggregating.OpenAt, aggregating.AskReady, aggregating.AskPads)
"""What an aggregator asks of the attempt's hops alone."""


def measurement(index: int) -> int:
    """The integer that a silo sends in every value: in base 4, so that a digit of the sum is how often it counted."""
    return 1 << 2 * index


def apply(sign: int, body: Bytes, m: Manifest, covers: Iterable[tuple[Secret, Any]]) -> None:
    """Add masks or pads to a body, or take them off."""
    shape = layout(m)
    for seed, context in covers:
        stream = mask_stream(seed, context, m.plan.moduli)
        for i in range(shape.chunks):
            stream.apply(shape.part(body, i), i, shape.length(i), sign)


def planes_of(body: Bytes, m: Manifest) -> list[list[memoryview]]:
    """The planes of each chunk of a body."""
    shape = layout(m)
    return [shape.planes(shape.part(body, i).data, i) for i in range(shape.chunks)]


def root_of(body: Bytes, m: Manifest) -> bytes:
    """What a sender of this body signs."""
    shape = layout(m)
    return body_root([chunk_digest(i, shape.start(i), planes) for i, planes in enumerate(planes_of(body, m))])


def opened(h: Header, m: Manifest, name: str, private: Secret) -> Secret:
    """Open the seed of a header that is for this node."""
    layer = m.layer(name)
    sealed = next(s for s in h.seeds if s.recipient == name)
    seed = unseal(sealed.sealed, private, m.context(layer))
    if commitment(seed, m.context(layer)) != sealed.commitment:
        raise PeerFault(Reason.SEAL_BROKEN, "another seed was committed to")
    return seed


class Killed(Exception):  # noqa: N818 - what it is
    """The node that was to go on is no more."""


class Node:
    """A process: what it has in memory goes with it, and its journal stays."""

    def __init__(self, name: str, net: "Net") -> None:
        self.name, self.net = name, net
        self.up, self.lives, self.ticks = True, 0, 0
        self.journal: list[Any] = []
        self.restart()

    def restart(self) -> None:
        """Begin with what was remembered."""
        self.lives += 1
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def remember(self, fact: Any) -> None:
        self.journal.append(fact)

    def tick(self) -> None:
        """Come to the next effect, or be killed before it."""
        self.ticks += 1
        if self.net.kills == (self.name, self.ticks):
            self.restart()
            raise Killed


class Hop(Node):
    """A shuffler: its core, its journal, and the vectors that its process would hold."""

    def begin(self) -> None:
        self.core = shuffler.Shuffler(self.net.f, identity(self.name), self.net.rng)
        for fact in self.journal:
            self.core.recall(duplicate(fact))
        self.total: Bytes | None = None
        self.came, self.trails = b"", tuple[Trail, ...]()
        self.seeds: dict[bytes, Secret] = {}

    def remember(self, fact: Any) -> None:
        self.journal = written(self.journal, fact)

    def step(self, event: shuffler.Event, body: Bytes | None = None) -> list[shuffler.Effect]:
        """Step, and carry the effects out."""
        todo: deque[shuffler.Effect] = deque(self.core.step(event))
        done = []
        while todo:
            effect = todo.popleft()
            self.tick()
            done.append(effect)
            match effect:
                case Remember(fact):
                    self.remember(fact)
                case shuffler.Begin(m):
                    self.total, self.seeds, self.came, self.trails = layout(m).body(), {}, b"", ()
                case shuffler.Forget():
                    self.total, self.seeds = None, {}
                case shuffler.Pass(h, key):
                    todo.extend(self.take_header(h, key))
                case shuffler.Accuse(evidence):
                    self.net.accuses.append(evidence)
                    self.accuse(evidence)
                case shuffler.Drop() if isinstance(event, shuffler.EvidenceIn):
                    self.accuse(event.evidence)
                case shuffler.Count(h):
                    assert self.total is not None
                    assert body is not None
                    for i, planes in enumerate(planes_of(body, self.core.manifest)):
                        layout(self.core.manifest).add(self.total, i, planes)
                    todo.extend(self.core.step(shuffler.Counted(h)))
                case shuffler.Release():
                    self.release(effect)
                case shuffler.Reveal():
                    self.net.reveals(self, event)
                case shuffler.Abort(fault):
                    self.net.aborted.setdefault(self.name, []).append(fault.reason)
        return done

    def take_header(self, h: Header, key: Secret | None) -> list[shuffler.Effect]:
        """Open what is ours, and pass the header on."""
        if key is not None:
            try:
                self.seeds[h.digest] = opened(h, self.core.manifest, self.name, key)
            except PeerFault:
                return self.core.step(shuffler.Unopened(h))
        target = self.net.after(self.name)
        if target == AGGREGATOR:
            self.net.call(self, self.net.aggregator, aggregating.HeaderIn(h))
        else:
            self.net.call(self, self.net.hops[target], shuffler.HeaderIn(h, self.name))
        return []

    def accuse(self, evidence: Evidence) -> None:
        """Show the hop before why a header was refused."""
        chain = self.core.manifest.chain
        place = chain.index(self.name)
        if place:
            self.net.call(self, self.net.hops[chain[place - 1]], shuffler.EvidenceIn(evidence))

    def release(self, effect: shuffler.Release) -> None:
        """Take the masks off, put the pad on, sign for it, and send it on."""
        assert self.total is not None
        m, c = self.core.manifest, effect.cohort
        self.came = bodies_root(effect.roots) if effect.roots else self.came
        context = m.context(m.layer(self.name))
        apply(-1, self.total, m, [(self.seeds[p.header], context) for p in c.participants if self.seeds])
        apply(1, self.total, m, [(effect.pad, PadContext(c.digest, b"", self.name, m.chunk_parameters))])
        trail = Trail(self.name, c.digest, b"", self.came, root_of(self.total, m), pad_digest(effect.pad))
        trails = (*self.trails, trail.signed(identity(self.name)))
        self.net.sent.setdefault(self.name, []).append(c.silos)
        target = self.net.after(self.name)
        receiver = self.net.aggregator if target == AGGREGATOR else self.net.hops[target]
        body, life = self.total.copy(), self.lives

        def passes() -> None:
            try:
                if receiver.up:
                    receiver.take_sum(m, c, body, trails)
            except PeerFault as fault:
                self.net.refusals.append(fault.reason)
                if self.lives == life:
                    self.step(shuffler.SendRefused(m.digest, fault))

        self.net.tell(self, passes)

    def take_sum(self, m: Manifest, c: Cohort, body: Bytes, trails: tuple[Trail, ...]) -> None:
        """Take in what the hop before sends, with the trails so far."""
        if self.core.attempt is None or self.core.manifest != m:
            return
        check_trails(trails, c.digest, m.chain, self.net.f)
        assert trails[-1].sent == root_of(body, m)
        self.total, self.came, self.trails = body.copy(), trails[-1].sent, trails
        self.step(shuffler.CohortIn(c))


class Silo(Node):
    """A silo: its core, its journal, and the model that it has computed."""

    def begin(self) -> None:
        self.core = silo.Silo(self.net.f, identity(self.name))
        for fact in self.journal:
            self.core.recall(fact)
        if self.lives == 1:  # its disk
            self.at = 0
            self.model, self.server = self.net.first
        self.wants: Manifest | None = None
        self.counted = b""

    def step(self, event: silo.Event) -> list[silo.Effect]:
        done = []
        for effect in self.core.step(event):
            self.tick()
            done.append(effect)
            match effect:
                case Remember(fact):
                    self.remember(fact)
                case silo.Follow():
                    self.follow()
                case silo.TakePart(m):
                    self.wants = m
                case silo.Done(m):
                    self.counted = m.digest
        return done

    def follow(self) -> None:
        """Compute the models of the rounds that were applied since, from the sums that were released."""
        for record in self.core.log.records[self.at + 1 :]:
            self.tick()
            if record.outcome is Outcome.APPLIED:
                transcript, body = self.net.aggregator.sums[record.round, record.attempts[-1].attempt]
                found = self.net.compute(transcript, body.copy(), record, self.model, self.server)
                assert self.net.digests(*found) == (record.model_after, record.state_after)
                self.model, self.server = found
            self.at = record.round


class Aggregator(Node):
    """The aggregator: its core, its journal, the models and sums on its disk, and the vector that came."""

    def begin(self) -> None:
        if self.lives == 1:
            self.sums: dict[tuple[int, int], tuple[Transcript, Bytes]] = {}
            self.models = {self.net.digests(*self.net.first): self.net.first}
            self.published: list[Record] = []
        self.core = aggregating.Aggregator(self.net.f, identity(AGGREGATOR), self.net.rng)
        for fact in self.journal:
            self.core.recall(fact)
        self.seeds: dict[bytes, Secret] = {}
        self.headers: dict[bytes, Header] = {}
        self.body: Bytes | None = None
        self.asks: aggregating.Effect | None = None
        if self.lives > 1:
            self.net.queue.append(self.start)

    def start(self) -> None:
        self.step(aggregating.Awake(self.net.now))

    def restored(self, facts: int = 0) -> None:
        """Die, and come back with the first facts of the journal and no files: an old copy, or nothing."""
        self.journal = self.journal[:facts]
        self.sums, self.models = {}, {self.net.digests(*self.net.first): self.net.first}
        self.restart()

    def load(self) -> None:
        """Go on with the model on record: it is on the disk, or a silo has it."""
        self.published = [r for r in self.core.log.records if r.countersignatures]
        last = self.core.log.last
        digests = (last.model_after, last.state_after) if last else self.net.digests(*self.net.first)
        for one in self.net.silos.values():
            self.models.setdefault(self.net.digests(one.model, one.server), (one.model, one.server))
        kept = [
            t for (round_, _), (t, _) in sorted(self.sums.items(), key=lambda kv: kv[0]) if round_ == self.core.round
        ]
        pending = aggregating.Pending(kept[-1].manifest, kept[-1].ready) if kept else None
        self.step(aggregating.Start(*digests, SCHEMA, self.net.now, pending))

    def step(self, event: aggregating.Event) -> list[aggregating.Effect]:
        """Step, and carry the effects out."""
        todo: deque[aggregating.Effect] = deque(self.core.step(event))
        done = []
        while todo:
            effect = todo.popleft()
            self.tick()
            done.append(effect)
            match effect:
                case Remember(fact):
                    self.remember(fact)
                case aggregating.AskHeads():
                    self.ask(effect)
                case aggregating.Load():
                    self.net.tell(self, self.load)
                case aggregating.OpenAt():
                    self.seeds, self.headers, self.body = {}, {}, None
                    self.ask(effect)
                case aggregating.AskKeys() | aggregating.AskReady() | aggregating.AskPads() | aggregating.AskStore():
                    self.ask(effect)
                case aggregating.Announce():
                    self.asks = None
                case aggregating.Expand(h, key):
                    self.headers[h.digest] = h
                    if key is not None:
                        try:
                            self.seeds[h.digest] = opened(h, self.net.manifest, AGGREGATOR, key)
                        except PeerFault:
                            todo.extend(self.core.step(aggregating.Unopened(h)))
                case aggregating.Accuse(evidence):
                    self.net.accuses.append(evidence)
                    last = self.net.hops[self.net.manifest.chain[-1]]
                    self.net.call(self, last, shuffler.EvidenceIn(evidence))
                case aggregating.Take(c):
                    self.cohort = c
                case aggregating.Keep(m, ready, signatures):
                    assert self.body is not None
                    of = self.cohort.participants
                    seeds = tuple(self.seeds[p.header] for p in of if self.seeds)
                    headers = tuple(self.headers[p.header] for p in of)
                    transcript = Transcript(m, self.cohort, headers, ready, signatures, (), seeds)
                    self.sums[m.round, m.attempt] = (transcript, self.body)
                case aggregating.Apply(m, _, pads):
                    todo.extend(self.apply(m, tuple(pad for _, pad in pads)))
                case aggregating.Publish(record):
                    self.published.append(record)
                    for one in self.net.silos.values():
                        self.net.call(self, one, silo.RecordsIn(tuple(self.published)))
                case aggregating.GiveUp():
                    self.net.gave_up.append(effect)
        return done

    def take_sum(self, m: Manifest, c: Cohort, body: Bytes, trails: tuple[Trail, ...]) -> None:
        if self.core.manifest != m:
            return
        self.step(aggregating.CohortIn(c))
        assert trails[-1].sent == root_of(body, m)
        self.body = body.copy()
        self.step(aggregating.SumIn(m.digest, trails, self.net.now))
        for hop in self.net.hops.values():
            self.net.call(self, hop, shuffler.Delivered(m.digest))

    def apply(self, m: Manifest, pads: tuple[Secret, ...]) -> list[aggregating.Effect]:
        """Make the next model of the sum, as every silo will."""
        transcript, body = self.sums[m.round, m.attempt]
        transcript = replace(transcript, pads=tuple(pad.copy() for pad in pads))
        self.sums[m.round, m.attempt] = (transcript, body)
        last = self.core.log.last
        assert last is not None
        found = self.net.compute(transcript, body.copy(), None, *self.models[last.model_after, last.state_after])
        digests = self.net.digests(*found)
        self.models[digests] = found
        return self.core.step(aggregating.SumApplied(m.digest, *digests, self.net.now))

    # Calls, which a driver makes again until they are answered

    def ask(self, effect: aggregating.Effect) -> None:
        self.asks = effect
        now, life = self.net.now, self.core.life
        chain = self.core.chain if isinstance(effect, ASKS_CHAIN) else self.net.f.chain
        for name, hop in ((name, self.net.hops[name]) for name in chain):
            match effect:
                case aggregating.AskHeads(_, start):
                    self.net.call(
                        self, hop, shuffler.Show(self.net.f.digest, life, start, self.core.life_signature), self.shows
                    )
                case aggregating.AskKeys():
                    known = self.core.hop_released.get(name, 0)
                    number = (effect.round, effect.attempt, effect.silos, known, effect.head, now, life)
                    missing = tuple(self.published[hop.core.log.round :])
                    for record in missing:
                        self.net.call(self, hop, shuffler.RecordIn(record, life))
                    self.net.call(self, hop, shuffler.Prepare(self.net.f.digest, *number), self.keys)
                case aggregating.OpenAt(m, head):
                    self.net.call(self, hop, shuffler.Open(m, head, now, life), self.opened)
                case aggregating.AskReady(ready):
                    self.net.call(self, hop, shuffler.ReadyIn(ready.manifest, ready.trails, life), self.agreed)
                case aggregating.AskPads(ready, signatures, bond):
                    self.net.call(self, hop, shuffler.RevealIn(ready.manifest, signatures, life, bond), self.shown)
                case aggregating.AskStore(record):
                    for one in (*self.published[hop.core.log.round :], record):
                        self.net.call(self, hop, shuffler.RecordIn(one, life), self.stored)

    def shows(self, hop: str, effects: list[Any]) -> aggregating.Event | None:
        answer = effects[-1]
        assert isinstance(answer, shuffler.Shows)
        return aggregating.HeadIn(hop, answer.shown, self.net.now)

    def keys(self, hop: str, effects: list[Any]) -> aggregating.Event | None:
        answer = effects[-1]
        assert isinstance(answer, shuffler.Keys)
        return aggregating.KeysIn(hop, answer.keys, answer.last_released, self.net.now)

    def opened(self, hop: str, effects: list[Any]) -> aggregating.Event | None:
        return aggregating.OpenedAt(hop, self.net.manifest.digest, self.net.now)

    def agreed(self, hop: str, effects: list[Any]) -> aggregating.Event | None:
        answer = effects[-1]
        assert isinstance(answer, shuffler.Agree)
        return aggregating.AgreedIn(hop, self.net.manifest.digest, answer.signature)

    def shown(self, hop: str, effects: list[Any]) -> aggregating.Event | None:
        answer = effects[-1]
        assert isinstance(answer, shuffler.Reveal)
        return aggregating.PadIn(hop, self.net.manifest.digest, answer.pad)

    def stored(self, hop: str, effects: list[Any]) -> aggregating.Event | None:
        answer = effects[-1]
        if not isinstance(answer, shuffler.Countersign):
            return None
        return aggregating.CountersignedIn(hop, answer.record.digest, answer.signature, self.net.now)

    def refused(self, hop: str, event: shuffler.Event, fault: PeerFault) -> aggregating.Event | None:
        match event:
            case shuffler.RevealIn(m) if fault.reason is Reason.FENCED:
                return aggregating.PadRefused(hop, m, str(fault), self.net.now)
            case shuffler.ReadyIn(m) if fault.reason is Reason.FENCED:
                return aggregating.HopLost(hop, m, str(fault), self.net.now)
        return aggregating.HopFailed(hop, str(fault), self.net.now)


class Net:
    """One aggregator, its hops and silos, and a clock that only tests move."""

    def __init__(self, silos: int = 5, hops: int = 3, kills: tuple[str, int] | None = None, **policy: Any) -> None:
        self.f: Federation = federation(silos, hops, **{"precision": 6, "quorum": 1.0, **policy})
        self.rng = rng((silos, hops, sorted(policy)))
        self.kills = kills
        """The node that is killed, and before which of its effects."""
        self.now = 0.0
        self.queue: deque[Callable[[], None]] = deque()
        self.gave_up: list[aggregating.GiveUp] = []
        self.accuses: list[Evidence] = []
        self.sent: dict[str, list[tuple[str, ...]]] = {}
        self.aborted: dict[str, list[Reason]] = {}
        self.shown: dict[bytes, set[tuple[str, ...]]] = {}
        """By model: for whom pads were shown, by any hop."""
        self.refusals: list[Reason] = []
        optimiser = Optimiser.of(self.f.policy)
        zeros: Tensors = {t.name: np.zeros(t.shape, np.float32) for t in SCHEMA.tensors}
        self.first = (zeros, optimiser.start(SCHEMA))
        self.state_schema = optimiser.state_schema(SCHEMA)
        self.hops = {name: Hop(name, self) for name in self.f.chain}
        self.silos = {name: Silo(name, self) for name in self.f.silo_names}
        self.aggregator = Aggregator(AGGREGATOR, self)
        self.queue.append(self.aggregator.start)
        self.settle()

    # What everybody computes

    def digests(self, model: Tensors, server: Tensors) -> tuple[bytes, bytes]:
        return model_digest(SCHEMA, model), model_digest(self.state_schema, server)

    def compute(
        self, transcript: Transcript, body: Bytes, record: Record | None, model: Tensors, server: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Make the next model of a released sum; a silo checks it against a record first."""
        m = transcript.manifest
        if record is not None:
            check_transcript(transcript, record, self.f)
        check_root(body, transcript)
        uncover(body, transcript)
        mean = decode(body, m, len(transcript.cohort.participants), self.f)
        return next_model(self.f, m, [mean], model, server)

    @property
    def models(self) -> list[dict[int, int]]:
        """Of each round that was applied, how often each silo is in the sum."""
        found = []
        for record in self.core.log.records:
            if record.outcome is Outcome.APPLIED:
                transcript, body = self.aggregator.sums[record.round, record.attempts[-1].attempt]
                found.append(self.digits(transcript, body.copy()))
        return found

    def digits(self, transcript: Transcript, body: Bytes) -> dict[int, int]:
        uncover(body, transcript)
        m = transcript.manifest
        aggregate = Codec(m.schema, m.bounds, m.plan, m.chunk_parameters).decode(
            body, len(transcript.cohort.participants)
        )
        sums = {round(float(x) * aggregate.weight * m.plan.v) for t in aggregate.tensors.values() for x in t.flat}
        assert len(sums) == 1  # the same in every value
        (total,) = sums
        return {i: total // 4**i % 4 for i in range(len(self.f.silos)) if total // 4**i % 4}

    def once(self, *indices: int) -> dict[int, int]:
        return dict.fromkeys(indices, 1)

    # Talking

    @property
    def core(self) -> aggregating.Aggregator:
        return self.aggregator.core

    @property
    def manifest(self) -> Manifest:
        assert self.core.manifest is not None
        return self.core.manifest

    def tell(self, caller: Node, what: Callable[[], None]) -> None:
        """Do something later, if the caller is still there by then."""
        life = caller.lives

        def go() -> None:
            if caller.lives == life:
                what()

        self.queue.append(go)

    def call(self, caller: Node, target: Any, event: Any, then: Callable[[str, list[Any]], Any] | None = None) -> None:
        """Tell another node of an event, and the caller of its answer."""
        self.tell(caller, lambda: self._deliver(caller, target, event, then))

    def _deliver(self, caller: Any, target: Any, event: Any, then: Callable[[str, list[Any]], Any] | None) -> None:
        life, answer = caller.lives, cast("aggregating.Event | None", None)
        if not target.up:
            answer = aggregating.HopFailed(target.name, "not reachable", self.now) if then else None
        else:
            try:
                effects = target.step(event)
            except Killed:  # the call has failed, and is made again
                return
            except PeerFault as fault:
                self.refusals.append(fault.reason)
                answer = self.aggregator.refused(target.name, event, fault) if then else None
            else:
                answer = then(target.name, effects) if then else None
        if answer is not None and caller.lives == life:
            self.queue.append(lambda: self._answer(caller, life, answer))

    def _answer(self, caller: Any, life: int, answer: Any) -> None:
        if caller.lives == life:
            caller.step(answer)

    def settle(self, until: aggregating.Phase | None = None) -> None:
        """Let everybody say what they have to say; or only until the aggregator has come so far."""
        for _ in range(10_000):
            if not self.queue or self.core.phase is until:
                return
            what = self.queue.popleft()
            try:
                what()
            except Killed:
                continue
        raise AssertionError("there is no end to it")

    def after(self, name: str) -> str:
        chain = self.hops[name].core.manifest.chain
        place = chain.index(name) + 1
        return chain[place] if place < len(chain) else AGGREGATOR

    def reveals(self, hop: Hop, event: shuffler.Event) -> None:
        """A pad is out: the fact is in the hop's journal, and one cohort has the model."""
        assert isinstance(event, shuffler.RevealIn)
        (fact,) = [f for f in hop.journal if isinstance(f, shuffler.Released) and f.manifest == event.manifest]
        silos = self.shown.setdefault(fact.model, set())
        silos.add(fact.silos)
        assert len(silos) == 1

    # What tests do

    def submit(self, *names: str, times: int = 1, until: aggregating.Phase | None = None) -> None:
        """Announce the attempt to these silos, and let each send its body, once or several times."""
        m = self.manifest
        for name in names or self.f.silo_names:
            core = self.silos[name]
            core.step(silo.Announced(m))
            self.send(core.core.sealing(m, self.rng), name, m, times)
            self.settle(until)

    def send(self, sealing: silo.Sealing, name: str, m: Manifest, times: int = 1) -> None:
        """Send a body under fresh masks."""
        body, root = self.body(sealing, name, m)
        signature = identity(name).sign(trailer_digest(sealing.header.digest, root))
        first = self.hops[m.chain[0]]
        receipts = []
        for _ in range(times):
            first.step(shuffler.HeaderIn(sealing.header, name))
            self.settle()
            effects = first.step(shuffler.BodyIn(sealing.header, root, root, signature), body)
            receipts += [effect.receipt for effect in effects if isinstance(effect, shuffler.Acknowledge)]
        assert len(receipts) == times
        assert len(set(receipts)) == 1
        assert self.silos[name].step(silo.ReceiptIn(receipts[0], root)) == [silo.Done(m)]

    def body(self, sealing: silo.Sealing, name: str, m: Manifest) -> tuple[Bytes, bytes]:
        """What a silo sends for this model: always the same integers."""
        value = measurement(self.f.silo_names.index(name)) / m.plan.v
        tensors = {t.name: np.full(t.shape, value, np.float32) for t in m.schema.tensors}
        body = layout(m).body()
        for _ in Codec(m.schema, m.bounds, m.plan, m.chunk_parameters).encode(tensors, body=body):
            pass
        apply(1, body, m, [(seed, m.context(layer)) for layer, seed in sealing.seeds])
        return body, root_of(body, m)

    def wait(self, seconds: float) -> None:
        """Let time pass for everybody."""
        self.now += seconds
        for hop in self.hops.values():
            if hop.up:
                self.call(hop, hop, shuffler.Tick(self.now))
        self.settle()
        self.call(self.aggregator, self.aggregator, aggregating.Tick(self.now))
        self.settle()

    def reopen(self, name: str) -> None:
        """Open the attempt again at a hop that was started anew."""
        head = self.core.log.last
        assert head is not None
        self.hops[name].step(shuffler.Open(self.manifest, head, self.now, self.core.life))
