"""An aggregator in memory, and one that lies."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from silomix.runtime.core.errors import Fault, LocalFault, PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol import aggregator as steps
from silomix.runtime.core.protocol import shuffler
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import Accusation, Bond, Manifest
from silomix.runtime.core.protocol.release import Ready, Signatures
from silomix.runtime.core.protocol.roundlog import Outcome, Record, computed_digest
from silomix.runtime.faults.disk import MemoryJournal
from silomix.runtime.faults.process import Node
from silomix.runtime.faults.scene import identity
from silomix.runtime.faults.streams import (
    Event,
    GetModel,
    GetSum,
    News,
    Passage,
    Probe,
    Relay,
    Store,
    Wanted,
    Watch,
    opened,
)
from silomix.runtime.faults.world import Killed, Reply
from silomix.runtime.net.health import GAVE_UP, NOT_OPEN
from silomix.runtime.net.history import read_transcript, write_transcript
from silomix.runtime.nodes.facts import read_aggregator, write_aggregator
from silomix.runtime.nodes.lead.asking import GIVEN_UP, NOT_OPENED
from silomix.runtime.nodes.lead.rollcall import GONE_S
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.v1 import history_pb2

WATCH_S = 5.0
PRESENT_S = 30.0
ASKING = (steps.Phase.COLLECTING, steps.Phase.RELEASING)


@lru_cache(maxsize=64)
def _parsed(raw: bytes) -> Transcript | None:
    """Read a transcript, or nothing if it is damaged. The same bytes are read once."""
    try:
        return read_transcript(history_pb2.Transcript.FromString(raw))
    except (DecodeError, Fault):
        return None


def _model(data: bytes, digest: bytes, *, checked: bool = True) -> Any:
    """Read a model, or nothing if it is another or damaged."""
    try:
        schema, tensors = read_model(data)
    except LocalFault:
        return None
    return tensors if not checked or model_digest(schema, tensors) == digest else None


class Lead(Node):
    """An aggregator."""

    core: steps.Aggregator

    def begin(self) -> None:
        """Recall what the journal has, and load the model that it names."""
        self.journal = MemoryJournal(self.disk)
        self.core = self.scene.make_aggregator()
        for fact in read_aggregator(self.journal):
            self.core.recall(fact)
        self.model, self.state = self.scene.first
        self.began = self.world.now
        self.answered: dict[str, float] = {}
        """By hop: when it last said that it is there."""
        self.watched: dict[str, float] = {}
        """By silo: when it last asked for news."""
        self.computed: dict[bytes, dict[str, bytes]] = {}
        """By record: the silos that have computed its model."""
        self.passage: Passage | None = None
        self.taken = b""
        self.published = self.core.log.round - (not self.core.counts)

    def started(self) -> None:
        """Hear the hops, then begin or go on."""
        self.insist(steps.Awake(self.now))
        self.later(WATCH_S, self._look)

    def _load(self) -> None:
        """Read the model that the log names, or get it from a silo."""
        self.published = self.core.log.round - (not self.core.counts)
        newest = self.core.log.model
        data = self.disk.content.files.get(f"model-{newest.hex()}")
        if newest in (b"", self.scene.digests(*self.scene.first)[0]):
            self._loaded(self.scene.first[0])
        elif data is not None and (found := _model(data, newest, checked=self.disk.checked)) is not None:
            self._loaded(found)
        else:
            for name in self.scene.federation.silo_names:
                self.ask(name, lambda: Wanted(newest), lambda: self.core.phase is steps.Phase.LOADING, self._given)

    def _given(self, data: Any) -> bool:
        newest = self.core.log.model
        found = _model(data, newest) if isinstance(data, bytes) and data else None
        if found is None or self.core.phase is not steps.Phase.LOADING:
            return False
        try:
            self.disk.put_file(f"model-{newest.hex()}", data)
        except OSError:
            return False
        self.scene.watch.regained += 1
        self._loaded(found)
        return True

    def _loaded(self, model: Any) -> None:
        self.model, self.state = model, self.scene.first[1]  # the average keeps no state
        digests = (model_digest(self.scene.schema, self.model), self.scene.digests(self.model, self.state)[1])
        self.decides(steps.Start(*digests, self.scene.schema, self.now, self._pending()))

    def decides(self, event: steps.Event) -> None:
        """Step, and end if the machine says that this process must not go on."""
        try:
            self.insist(event)
        except LocalFault as fault:
            self.broken, self.up = str(fault), False
            self.scene.watch.ended_itself(self.name, self.broken)
            raise Killed from None

    def tick(self) -> steps.Event:
        """Time has passed."""
        return steps.Tick(self.now)

    def remember(self, fact: steps.Fact) -> None:
        """Write a fact."""
        write_aggregator(self.journal, fact, "average")

    # Kept sums

    def _pending(self) -> steps.Pending | None:
        for attempt in range(self.core.attempt, 0, -1):
            kept = self.kept(self.core.round, attempt)
            if kept is not None:
                return steps.Pending(kept.manifest, kept.ready)
        return None

    def kept(self, round_: int, attempt: int) -> Transcript | None:
        """Read what was kept of an attempt."""
        raw = self.disk.content.files.get(f"transcript-{round_}-{attempt}")
        return None if raw is None else _parsed(raw)

    def _write(self, transcript: Transcript) -> None:
        m = transcript.manifest
        self.disk.put_file(f"transcript-{m.round}-{m.attempt}", write_transcript(transcript).SerializeToString())

    def _vector(self, m: Manifest) -> Bytes:
        return np.frombuffer(self.disk.content.files[f"sum-{m.round}-{m.attempt}"], np.uint8).copy()

    # Carrying decisions out

    def perform(self, effect: steps.Effect) -> steps.Event | None:
        """Carry one decision out."""
        match effect:
            case steps.AskHeads(life, start, hops):
                for hop in hops:
                    self._ask_head(hop, life, start)
            case steps.Load():
                self.later(0.01, self._load)
            case steps.AskKeys():
                for hop in effect.chain:
                    self._ask_keys(hop, effect)
            case steps.OpenAt(manifest, head):
                self.passage = Passage.of(manifest)
                self._open_at(manifest, head, len(manifest.chain) - 1)
            case steps.Announce(manifest):
                self._tell(manifest)
            case steps.Expand(header, key):
                assert self.passage is not None
                if key is not None:
                    try:
                        self.passage.seeds[header.digest] = opened(header, self.passage.manifest, self.name, key)
                    except PeerFault:
                        return steps.Unopened(header)
                self.passage.headers[header.digest] = header
            case steps.Take(cohort):
                assert self.passage is not None
                self.passage.cohort = cohort
            case steps.AskReady(ready, chain):
                for hop in chain:
                    self._ask_ready(hop, ready)
            case steps.Keep(manifest, ready, signatures):
                self._keep(manifest, ready, signatures)
            case steps.AskPads(ready, signatures, bond):
                for trail in ready.trails:
                    self._ask_pad(trail.hop, ready.manifest, signatures, bond)
            case steps.Apply(manifest, _, pads):
                self.later(0.01, lambda: self._apply(manifest, pads))
            case steps.AskStore(record, hops):
                for hop in hops:
                    self._ask_store(hop, record)
            case steps.Publish(record):
                self.published = record.round + 1
                self._tell(None)
            case steps.GiveUp():
                self.passage = None
                self.scene.watch.gives_up(effect)
            case steps.Finish():
                self._tell(None)
        return None

    def _tell(self, manifest: Manifest | None) -> None:
        for name in self.scene.federation.silo_names:
            self.world.send(self.name, name, self._news(0, manifest), lambda _: None)

    def _news(self, have: int, manifest: Manifest | None) -> News:
        records = tuple(self.core.log.records[have : self.published])
        return News(records, manifest, self.core.phase is steps.Phase.FINISHED)

    def _is_now(self, round_: int, attempt: int) -> bool:
        return (self.core.round, self.core.attempt) == (round_, attempt)

    def _is_in(self, phase: steps.Phase, manifest: bytes) -> bool:
        now = self.core.manifest
        return self.core.phase is phase and now is not None and now.digest == manifest

    def hears(self, hop: str, said: Callable[[], steps.Event]) -> bool:
        """Take in what a hop has answered, and say whether it holds."""
        self.answered[hop] = self.world.now
        try:
            self.decides(said())
        except PeerFault as fault:
            self.scene.watch.refusals[fault.reason] += 1
            self.insist(steps.HopFailed(hop, str(fault), self.now))
            return False
        return True

    def _ask_head(self, hop: str, life: bytes, start: int) -> None:
        def wanted() -> bool:
            return self.core.life == life and hop not in self.core.heard

        event = shuffler.Show(self.scene.federation.digest, life, start, self.core.life_signature)
        self.ask(hop, lambda: Event(event), wanted, partial(self._shown, hop))

    def _shown(self, hop: str, answer: Any) -> bool:
        if isinstance(answer, PeerFault):
            self.insist(steps.HopFailed(hop, str(answer), self.now))
            return False
        shown = next(e for e in answer if isinstance(e, shuffler.Shows)).shown
        return self.hears(hop, lambda: steps.HeadIn(hop, shown, self.now))

    def _unheard(self, hop: str, answer: Any) -> None:
        """Hear a hop that says that it serves another process, or none yet."""
        if isinstance(answer, PeerFault) and answer.reason is Reason.SUPERSEDED:
            start = max(0, self.core.log.round - 1)
            event = shuffler.Show(self.scene.federation.digest, self.core.life, start, self.core.life_signature)
            self.world.send(self.name, hop, Event(event), partial(self._again, self.life, partial(self._shown, hop)))

    def _ask_keys(self, hop: str, effect: steps.AskKeys) -> None:
        f, known = self.scene.federation, self.core.hop_released.get(hop, 0)
        event = shuffler.Prepare(
            f.digest, effect.round, effect.attempt, effect.silos, known, effect.head, 0.0, self.core.life
        )

        def take(answer: Any) -> bool:
            self._unheard(hop, answer)
            if isinstance(answer, PeerFault):
                self.insist(steps.HopFailed(hop, str(answer), self.now))
                return False
            if not self._is_now(effect.round, effect.attempt):
                return True
            made = next(e for e in answer if isinstance(e, shuffler.Keys))
            return self.hears(hop, lambda: steps.KeysIn(hop, made.keys, made.last_released, self.now))

        self.ask(hop, lambda: Event(event), lambda: self._is_now(effect.round, effect.attempt), take)

    def _open_at(self, m: Manifest, head: Record, place: int) -> None:
        """Open the attempt from the last hop to the first."""
        hop = m.chain[place]

        def take(answer: Any) -> bool:
            if isinstance(answer, PeerFault):
                lost = steps.HopLost(hop, m.digest, str(answer), self.now)
                self.insist(lost if answer.reason in NOT_OPENED else steps.HopFailed(hop, str(answer), self.now))
                return answer.reason in NOT_OPENED
            self.hears(hop, lambda: steps.OpenedAt(hop, m.digest, self.now))
            if place:
                self._open_at(m, head, place - 1)
            return True

        event = shuffler.Open(m, head, 0.0, self.core.life)
        self.ask(hop, lambda: Event(event), lambda: self._is_in(steps.Phase.OPENING, m.digest), take)

    def _ask_ready(self, hop: str, ready: Ready) -> None:
        def take(answer: Any) -> bool:
            if isinstance(answer, PeerFault):
                lost = steps.HopLost(hop, ready.manifest, str(answer), self.now)
                self.insist(lost if answer.reason in GIVEN_UP else steps.HopFailed(hop, str(answer), self.now))
                return answer.reason in GIVEN_UP
            signed = next(e for e in answer if isinstance(e, shuffler.Agree))
            return self.hears(hop, lambda: steps.AgreedIn(hop, ready.manifest, signed.signature))

        event = shuffler.ReadyIn(ready.manifest, ready.trails, self.core.life)
        self.ask(hop, lambda: Event(event), lambda: self._is_in(steps.Phase.READY, ready.manifest), take)

    def _ask_pad(self, hop: str, manifest: bytes, signatures: Signatures, bond: Bond) -> None:
        def take(answer: Any) -> bool:
            self._unheard(hop, answer)
            if isinstance(answer, PeerFault):
                refused = steps.PadRefused(hop, manifest, str(answer), self.now)
                self.insist(refused if answer.reason in GIVEN_UP else steps.HopFailed(hop, str(answer), self.now))
                return answer.reason in GIVEN_UP
            shown = next(e for e in answer if isinstance(e, shuffler.Reveal))
            pad = shown.pad.copy()
            return self.hears(hop, lambda: steps.PadIn(hop, manifest, pad))

        event = shuffler.RevealIn(manifest, signatures, self.core.life, bond)
        self.ask(hop, lambda: Event(event), lambda: self._is_in(steps.Phase.REVEALING, manifest), take)

    def _ask_store(self, hop: str, record: Record) -> None:
        records, start, life = self.core.log.records, max(0, record.round - 1), self.core.life

        def wanted() -> bool:
            last = self.core.log.last
            return last is not None and last.digest == record.digest and self.core.phase is not steps.Phase.FINISHED

        def take(answer: Any) -> bool:
            nonlocal start
            self._unheard(hop, answer)
            if isinstance(answer, PeerFault):
                self.insist(steps.HopFailed(hop, str(answer), self.now))
                return answer.reason is Reason.FORKED
            have, signature = answer
            if have > len(records):
                self.insist(steps.HopFailed(hop, "it is ahead: restored from a copy?", self.now))
                return True
            if have > record.round:
                return self.hears(hop, lambda: steps.CountersignedIn(hop, record.digest, signature, self.now))
            if have != start:
                start = have
                self.world.send(
                    self.name, hop, Store(tuple(records[start:]), life), partial(self._again, self.life, take)
                )
            return False

        self.ask(hop, lambda: Store(tuple(records[start:]), life), wanted, take)

    def _again(self, life: int, take: Callable[[Any], bool], answer: Any) -> None:
        if self.up and self.life == life and not isinstance(answer, OSError):
            self.doing(lambda: self._take(take, answer))

    def _take(self, take: Callable[[Any], bool], answer: Any) -> None:
        take(answer)

    def _look(self) -> None:
        """Ask all hops whether they are there, and those of the open attempt whether they still have it."""
        m, now = self.core.manifest, self.world.now
        asked = m if m is not None and self.core.phase in ASKING else None
        for hop in self.scene.federation.chain:
            probe = Probe(asked.digest if asked is not None and hop in asked.chain else b"")
            self.world.send(self.name, hop, probe, self._seen(hop, probe.manifest))
            if now - self.answered.get(hop, self.began) > GONE_S and self.core.phase is not steps.Phase.FINISHED:
                present = tuple(silo for silo, at in self.watched.items() if now - at < PRESENT_S)
                self.insist(steps.HopGone(hop, "it does not answer", self.now, present))
        self.later(WATCH_S, self._look)

    def _seen(self, hop: str, manifest: bytes) -> Reply:
        life = self.life

        def hear(state: Any) -> None:
            if self.life == life and self.up:
                self.answered[hop] = self.world.now
                self.doing(lambda: self._heard_of(hop, manifest, state))

        return hear

    def _heard_of(self, hop: str, manifest: bytes, state: Any) -> None:
        if hop in self.core.gone:
            self.insist(steps.HopBack(hop, self.now))
        now, head = self.core.manifest, self.core.log.last
        goes_on = now is not None and now.digest == manifest and hop != now.chain[0]
        if state == NOT_OPEN and goes_on and now is not None and head is not None:
            event = shuffler.Open(now, head, 0.0, self.core.life)
            took = partial(self._opened_again, hop, manifest)
            self.world.send(self.name, hop, Event(event), partial(self._again, self.life, took))
        elif manifest and state in (NOT_OPEN, GAVE_UP):
            self.insist(steps.HopLost(hop, manifest, state, self.now, restarted=state == NOT_OPEN))

    def _opened_again(self, hop: str, manifest: bytes, answer: Any) -> bool:
        """Go on with the attempt at a hop that was started again, or hear that it will not."""
        if isinstance(answer, PeerFault):
            self.insist(steps.HopLost(hop, manifest, str(answer), self.now, restarted=True))
        return True

    # Sums

    def answer(self, sender: str, request: Any, reply: Reply) -> None:
        """Answer one request."""
        match request:
            case Watch() if self.core.phase in (steps.Phase.STARTING, steps.Phase.HEARING):
                raise ConnectionResetError("the hops are being heard")
            case Watch(have):
                self.watched[sender] = self.world.now
                if request.record == self.core.log.head and request.signature:
                    verify(identity(sender).public, computed_digest(request.record, sender), request.signature, sender)
                    self.computed[request.record] = {**self.computed.get(request.record, {}), sender: request.signature}
                if have > self.published:
                    raise PeerFault(Reason.WRONG_HEAD, "restored from an old copy")
                now = self.core.manifest if self.core.phase in ASKING else None
                reply(self._news(have, now))
            case GetModel(record_):
                if (
                    record_ != self.core.log.head
                    or self.core.log.model != self.scene.digests(self.model, self.state)[0]
                ):
                    raise PeerFault(Reason.WRONG_MODEL, "that is not the current model")
                reply((write_model(self.scene.schema, self.model), self.computed.get(record_, {})))
            case GetSum(round_):
                records = self.core.log.records
                record = records[round_] if 0 < round_ < self.published else None
                applied = record is not None and record.outcome is Outcome.APPLIED
                kept = self.kept(round_, record.attempts[-1].attempt) if applied and record is not None else None
                if kept is None or not kept.pads:
                    raise PeerFault(Reason.WRONG_ROUND, "the sum is not kept here")
                reply((kept, self._vector(kept.manifest)))
            case Relay():
                reply(self._relay(sender, request))

    def _relay(self, sender: str, request: Relay) -> bytes:
        now = self.passage
        if self.taken == request.manifest:
            return self.taken
        if now is None or now.manifest.digest != request.manifest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the stream belongs to no open attempt")
        for header in request.headers if now.cohort is None else ():
            for effect in self.step(steps.HeaderIn(header)):
                if isinstance(effect, steps.Accuse):
                    raise Accusation(effect.evidence)
        if request.cohort is None:
            raise ConnectionResetError("the stream is still open")
        self.step(steps.CohortIn(request.cohort))
        for i, part in enumerate(request.chunks):
            now.take(i, part)
        if not request.trails:
            raise ConnectionResetError("the stream broke")
        now.end(request.trails, self.scene.federation)
        self.step(steps.SumIn(request.manifest, request.trails, self.now))
        self.taken = request.manifest
        return self.taken

    def _keep(self, m: Manifest, ready: Ready, signatures: Signatures) -> None:
        now = self.passage
        assert now is not None
        assert now.cohort is not None
        of = now.cohort.participants
        seeds = tuple(now.seeds[p.header] for p in of) if now.seeds else ()
        self.disk.put_file(f"sum-{m.round}-{m.attempt}", now.total.tobytes())
        headers = tuple(now.headers[p.header] for p in of)
        self._write(Transcript(m, now.cohort, headers, ready, signatures, seeds=seeds))

    def _apply(self, m: Manifest, pads: tuple[tuple[str, Secret], ...]) -> None:
        """Make the next model of the sum, as every silo will; a full disk holds it up."""
        if not self._is_in(steps.Phase.APPLYING, m.digest):
            return
        kept = self.kept(m.round, m.attempt)
        try:
            if kept is None:
                raise PeerFault(Reason.ROOT_MISMATCH, "what was kept of the sum is damaged")
            kept = replace(kept, pads=tuple(pad.copy() for _, pad in pads))
            self._write(kept)
            found = self.scene.compute(kept, self._vector(m), None, self.model, self.state)
        except PeerFault as fault:
            self.insist(steps.SumRefused(m.digest, str(fault), self.now))
            return
        except OSError:
            self.later(1.0, lambda: self._apply(m, pads))
            return
        digests = self.scene.digests(*found)
        try:
            self.disk.put_file(f"model-{digests[0].hex()}", write_model(self.scene.schema, found[0]))
        except OSError:
            self.later(1.0, lambda: self._apply(m, pads))
            return
        self.scene.watch.applies(kept, self.scene.total(kept, self._vector(m)))
        self.model, self.state = found
        self.insist(steps.SumApplied(m.digest, *digests, self.now))


class Liar(Lead):
    """An aggregator that wants two sums on one model: it forgets the first, and tries again without a silo.

    It also asks for pads before all have signed, with the signatures that it has.
    """

    def begin(self) -> None:
        """Begin with nothing learned."""
        super().begin()
        self.learned_of: dict[bytes, int] = {}
        self.left_out = ""

    def perform(self, effect: steps.Effect) -> steps.Event | None:
        """Carry a decision out, or do something else."""
        random = self.world.random
        match effect:
            case steps.Apply(m, _, _) if self.learned_of.get(m.model, 0) < 2:
                self.learned_of[m.model] = self.learned_of.get(m.model, 0) + 1
                self.left_out = random.choice(self.scene.federation.silo_names)
                self.scene.watch.lied()
                return steps.SumRefused(m.digest, "one more try", self.now)
            case steps.AskReady(ready, chain):
                super().perform(effect)
                early = self._early(ready, chain)
                self.world.send(self.name, random.choice(chain), Event(early), lambda _: None)
                self.later(0.5, lambda: self.world.send(self.name, random.choice(chain), Event(early), lambda _: None))
                return None
        return super().perform(effect)

    def _early(self, ready: Ready, chain: tuple[str, ...]) -> shuffler.RevealIn:
        own = self.identity.sign(ready.digest)
        signatures = (*((hop, bytes(64)) for hop in chain), (self.name, own))
        return shuffler.RevealIn(ready.manifest, signatures, self.core.life)

    def _tell(self, manifest: Manifest | None) -> None:
        for name in self.scene.federation.silo_names:
            if name != self.left_out or manifest is None:
                self.world.send(self.name, name, self._news(0, manifest), lambda _: None)

    def answer(self, sender: str, request: Any, reply: Reply) -> None:
        """Say nothing to whoever is to be left out."""
        if not (isinstance(request, Watch) and sender == self.left_out):
            super().answer(sender, request, reply)
