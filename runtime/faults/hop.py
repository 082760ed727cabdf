"""A shuffler in memory."""

from dataclasses import replace
from functools import partial
from typing import Any

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol import shuffler
from silomix.runtime.core.protocol.messages import Accusation, Cohort, Header, body_root
from silomix.runtime.core.protocol.release import PadContext, Trail, bodies_root, pad_digest
from silomix.runtime.core.protocol.roundlog import Fork, Record
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.faults.disk import MemoryJournal
from silomix.runtime.faults.process import Node
from silomix.runtime.faults.streams import (
    Event,
    Passage,
    Probe,
    Relay,
    Store,
    Submit,
    chunk_of,
    cover,
    cut,
    opened,
    parts_of,
    planes_of,
)
from silomix.runtime.faults.world import Reply
from silomix.runtime.net.answers import ANSWERS
from silomix.runtime.net.health import GAVE_UP, NOT_OPEN
from silomix.runtime.nodes.facts import read_shuffler, write_shuffler


class Hop(Node):
    """A shuffler."""

    core: shuffler.Shuffler

    def begin(self) -> None:
        """Recall what the journal has."""
        self.journal = MemoryJournal(self.disk)
        self.core = self.scene.make_shuffler(self.name)
        for fact in read_shuffler(self.journal):
            self.core.recall(fact)
        self.passage: Passage | None = None
        self.through: bytes = b""
        self.waiting: list[Reply] = []
        self.bodies: dict[bytes, tuple[Bytes, ...]] = {}

    def remember(self, fact: shuffler.Fact) -> None:
        """Write a fact."""
        write_shuffler(self.journal, fact)

    def tick(self) -> shuffler.Event:
        """Time has passed."""
        return shuffler.Tick(self.now)

    @property
    def _now(self) -> Passage:
        assert self.passage is not None
        return self.passage

    def perform(self, effect: shuffler.Effect) -> shuffler.Event | None:
        """Carry one decision out."""
        match effect:
            case shuffler.Begin(manifest):
                self.passage, self.waiting = Passage.of(manifest), []
                self.scene.watch.opens(self.name, manifest, self.core.log)
                self._send(self.passage)
            case shuffler.Pass(header, key):
                if key is not None:
                    try:
                        self._now.seeds[header.digest] = opened(header, self._now.manifest, self.name, key)
                    except PeerFault:
                        return shuffler.Unopened(header)
                self._now.headers[header.digest] = header
                self._send(self._now)
            case shuffler.Drop(name):
                now = self._now
                now.headers = {digest: header for digest, header in now.headers.items() if header.silo != name}
            case shuffler.Count(header):
                self.add(self.bodies.pop(header.digest))
                return shuffler.Counted(header)
            case shuffler.Release(cohort, _, pad, roots):
                self._release(cohort, pad, roots)
            case shuffler.Forget():
                self.passage = None
            case shuffler.Reveal(pad):
                self.scene.watch.shows(self, pad)
        return None

    def add(self, chunks: tuple[Bytes, ...]) -> None:
        """Add a silo's whole body to the sum."""
        m = self._now.manifest
        for i, part in enumerate(chunks):
            layout(m).add(self._now.total, i, planes_of(part, m, i))

    def come(self, header: Header, chunks: tuple[Bytes, ...], *, ended: bool) -> None:
        """Hear of what came of a body: nothing of it counts before its end."""

    def _release(self, cohort: Cohort, pad: Secret, roots: tuple[bytes, ...]) -> None:
        """Take the cohort's masks off, and put the pad on; what comes later is added below it."""
        now = self._now
        m = now.manifest
        now.cohort, now.pad = cohort, pad
        context = m.context(m.layer(self.name))
        cover(-1, now.total, m, [(now.seeds[p.header], context) for p in cohort.participants if now.seeds])
        cover(1, now.total, m, [(pad, PadContext(cohort.digest, b"", self.name, m.chunk_parameters))])
        if roots:  # hop 1: all bodies are in
            now.root = bodies_root(roots)
            self._ends(now)

    def _ends(self, now: Passage) -> None:
        """All has come in: sign for it, and pass it on."""
        m, cohort = now.manifest, now.cohort
        assert cohort is not None
        assert now.pad is not None
        if now.out is None:
            parts = parts_of(now.total, m)
            sent = body_root([chunk_of(part, m, i) for i, part in enumerate(parts)])
            own = Trail(self.name, cohort.digest, b"", now.root, sent, pad_digest(now.pad)).signed(self.identity)
            headers = tuple(now.headers.values())
            now.out = Relay(m.digest, headers, cohort, parts, (*now.trails, own))
        self._send(now)

    def _send(self, now: Passage) -> None:
        """Stream what is known to the next hop; from the beginning each time."""
        m = now.manifest
        place = m.chain.index(self.name) + 1
        target = m.chain[place] if place < len(m.chain) else self.scene.federation.aggregator.name
        if now.out is not None and now.said is now.out:
            return  # it is being streamed already
        said = now.said = now.out or Relay(m.digest, tuple(now.headers.values()), None, (), ())

        def wanted() -> bool:
            current = now.said is said  # else a later stream says more
            return self.passage is now and not now.delivered and current and now.refused is None

        self.ask(target, lambda: cut(said, self.world), wanted, partial(self._answered, now))

    def _answered(self, now: Passage, answer: Any) -> bool:
        m = now.manifest
        if isinstance(answer, Accusation):
            try:
                self.insist(shuffler.EvidenceIn(answer.evidence))
            except PeerFault as fault:
                self.insist(shuffler.SendRefused(m.digest, fault))
                return True
            return self.core.state is shuffler.State.GIVEN_UP
        if isinstance(answer, PeerFault):
            if answer.reason is Reason.WRONG_MANIFEST or ANSWERS[answer.reason].again:
                return False
            now.refused = answer
            self.insist(shuffler.SendRefused(m.digest, answer))
            return True
        if answer != m.digest:
            return False
        now.delivered, self.through = True, m.digest
        for reply in self.waiting:
            reply(m.digest)
        self.insist(shuffler.Delivered(m.digest))
        return True

    def answer(self, sender: str, request: Any, reply: Reply) -> None:
        """Answer one request."""
        match request:
            case Event(event):
                reply(self.step(replace(event, now=self.now) if hasattr(event, "now") else event))
            case Store(records, life):
                reply(self._store(records, life))
            case Probe(manifest):
                attempt = self.core.attempt
                alive = self.core.state in (shuffler.State.OPEN, shuffler.State.RELEASING, shuffler.State.DONE)
                known = attempt is not None and attempt.manifest.digest == manifest
                reply("open" if known and alive else GAVE_UP if known else NOT_OPEN)
            case Submit():
                reply(self._submit(sender, request))
            case Relay(manifest):
                if self.through == manifest:
                    reply(manifest)
                    return
                self._relay(sender, request)
                if self.passage is not None and request.trails and request.cohort is not None:
                    self.waiting.append(reply)

    def _submit(self, sender: str, request: Submit) -> Any:
        receipt = _receipt(self.step(shuffler.HeaderIn(request.header, sender)))
        if receipt is not None:
            return receipt
        if self.passage is None or self.passage.manifest.digest != request.header.manifest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the attempt ended while the header was on its way")
        self.come(request.header, request.chunks, ended=request.trailer is not None)
        if request.trailer is None:
            raise ConnectionResetError("the stream broke")
        m = self.passage.manifest
        root = body_root([chunk_of(part, m, i) for i, part in enumerate(request.chunks)])
        self.bodies[request.header.digest] = request.chunks
        receipt = _receipt(self.step(shuffler.BodyIn(request.header, root, *request.trailer)))
        if receipt is None:
            raise OSError("the body could not be added to the sum: this attempt was given up")
        return receipt

    def _relay(self, sender: str, request: Relay) -> None:
        now = self.passage
        if now is None or now.manifest.digest != request.manifest:
            raise PeerFault(Reason.WRONG_MANIFEST, "the stream belongs to no open attempt")
        for header in request.headers if now.cohort is None else ():
            for effect in self.step(shuffler.HeaderIn(header, sender)):
                if isinstance(effect, shuffler.Accuse):
                    raise Accusation(effect.evidence)
        if request.cohort is None:
            raise ConnectionResetError("the stream is still open")
        self.step(shuffler.CohortIn(request.cohort))
        for i, part in enumerate(request.chunks):
            now.take(i, part)
        if not request.trails:
            raise ConnectionResetError("the stream broke")
        now.end(request.trails, self.scene.federation)
        self._ends(now)

    def _store(self, records: tuple[Record, ...], life: bytes) -> tuple[int, bytes]:
        signature, log = b"", self.core.log
        for record in records:
            if record.round > log.round:
                return log.round, b""
            if record.round < log.round and log.records[record.round].digest == record.digest != log.head:
                continue
            try:
                effects = self.step(shuffler.RecordIn(record, life))
            except Fork as fork:
                self.step(shuffler.ForkSeen(fork))
                raise
            signature = next((e.signature for e in effects if isinstance(e, shuffler.Countersign)), b"")
        return log.round, signature


def _receipt(effects: list[Any]) -> Any:
    for effect in effects:
        if isinstance(effect, shuffler.Acknowledge):
            return effect.receipt
        if isinstance(effect, shuffler.Accuse):
            raise Accusation(effect.evidence)
    return None
