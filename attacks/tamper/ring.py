"""A federation in memory at level malicious: the real machines, real masks, pads and signatures, and no network.

What one node says to another waits in a queue. Any node may lie, at any place that `lies.Honest` has, and any may be
killed before any of its effects: it loses what is in its memory, and comes back with what it has remembered.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np

from silomix.attacks.tamper.lies import Honest, Silent
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.masks import Secret, commitment, mask_stream, unseal
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.numbers.tamper import EquationKind, Scalars
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol import aggregator as leading
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.check.blame import (
    Charge,
    Defence,
    EquivocationError,
    Verdict,
    check_told_once,
    decide,
    defend,
    signed_root,
    vector_root,
)
from silomix.runtime.core.protocol.check.forms import draw_blinders, scalars_of
from silomix.runtime.core.protocol.check.proofs import false_commitments, prove
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    SignedRoot,
    Statement,
    Subject,
    Toss,
    check_bodies,
    checks,
    relayed,
)
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, Traps
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.lineage import (
    Transcript,
    check_transcript,
    check_vector,
    decode,
    false_pad,
    next_model,
    uncover,
)
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Accusation, Cohort, Evidence, Header, Manifest, trailer_digest
from silomix.runtime.core.protocol.release import PadContext, Trail, bodies_root, check_trails, pad_digest
from silomix.runtime.core.protocol.roundlog import Outcome, Record
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.store.modelfile import model_digest

AGGREGATOR = "aggregator"
SCHEMA = Schema((TensorSpec("w", (37,)), TensorSpec("b", (3,))))
CHUNK = 16
MOST_STEPS = 20_000


class Killed(Exception):  # noqa: N818 - what it is
    """The node that was to go on is no more."""


def identity(name: str) -> Identity:
    """Make a node's key, the same in every run."""
    return Identity(name, Secret(sha256(f"drill {name}".encode()).digest()))


def federation(silos: int = 4, hops: int = 3, **policy: Any) -> Federation:
    """Make a federation of so many silos and hops."""

    def member(name: str) -> Member:
        return Member(name, identity(name).public, f"{name}:1")

    given = {"level": Level.MALICIOUS, "rounds": 1, "attempts": 2, "minimum_cohort": 3, "chunk_parameters": CHUNK}
    times = {"deadline_s": 60, "release_s": 20}
    return Federation(
        name="drill",
        aggregator=member(AGGREGATOR),
        shufflers=tuple(member(f"shuffler-{i + 1}") for i in range(hops)),
        silos=tuple(member(f"silo-{i + 1}") for i in range(silos)),
        policy=Policy(**{**given, **times, "precision": 6, **policy}),  # so many digits take two planes
    )


def cover(sign: int, body: Bytes, m: Manifest, secrets: Iterable[tuple[Secret, Any]]) -> None:
    """Add expansions to a body, or take them off."""
    shape = layout(m)
    for secret, context in secrets:
        stream = mask_stream(secret, context, m.plan.moduli)
        for i in range(shape.chunks):
            stream.apply(shape.part(body, i), i, shape.length(i), sign)


def opened(h: Header, m: Manifest, name: str, private: Secret) -> Secret:
    """Open the seed of a header that is for this node."""
    layer = m.layer(name)
    sealed = next(s for s in h.seeds if s.recipient == name)
    seed = unseal(sealed.sealed, private, m.context(layer))
    if commitment(seed, m.context(layer)) != sealed.commitment:
        raise PeerFault(Reason.SEAL_BROKEN, "another seed was committed to", peer=h.silo)
    return seed


class Node:
    """A process: what it has in memory goes with it, and its journal stays."""

    def __init__(self, name: str, ring: "Ring", lies: Honest) -> None:
        self.name, self.ring, self.lies = name, ring, lies
        self.lives, self.ticks = 0, 0
        self.journal: list[Any] = []
        self.restart()

    def restart(self) -> None:
        """Begin with what was remembered."""
        self.lives += 1
        self.begin()

    def begin(self) -> None:
        """Make the machine."""
        raise NotImplementedError

    def perform(self, effect: Any, event: Any) -> Any:
        """Carry an effect out; return what was learned by it."""
        raise NotImplementedError

    core: Any
    measuring = b""
    """The coin that a hop answers."""

    def step(self, event: Any) -> list[Any]:
        """Let the machine decide, and carry its decisions out."""
        todo: deque[Any] = deque(self.core.step(event))
        done = []
        while todo:
            effect = todo.popleft()
            self.ticks += 1
            if self.ring.kills == (self.name, self.ticks):
                self.restart()
                raise Killed
            done.append(effect)
            self.ring.trace.append((self.name, self.ticks, type(effect).__name__))
            if isinstance(effect, Remember):
                self.journal.append(effect.fact)
                continue
            learned = self.perform(effect, event)
            if learned is not None:
                todo.extend(self.core.step(learned))
        return done


class Hop(Node):
    """A shuffler: its core, its journal, and the vectors that its process would hold."""

    def begin(self) -> None:
        """Recall what the journal has. Secrets are copied: a machine overwrites what it forgets."""
        self.core = shuffler.Shuffler(self.ring.f, identity(self.name), self.ring.rng)
        for fact in self.journal:
            self.core.recall(_copied(fact))
        self.forget()

    def forget(self) -> None:
        """Leave nothing of an attempt."""
        self.seeds: dict[bytes, Secret] = {}
        self.bodies: dict[str, Bytes] = {}
        self.taken: Bytes | None = None
        self.out: Bytes | None = None
        self.pad: tuple[Secret, PadContext] | None = None
        self.came, self.trails = b"", tuple[Trail, ...]()
        self.roots: tuple[SignedRoot, ...] = ()

    def perform(self, effect: shuffler.Effect, event: shuffler.Event) -> Any:
        """Carry an effect out."""
        match effect:
            case shuffler.Begin() | shuffler.Forget():
                self.forget()
            case shuffler.Pass(h, key):
                if key is not None:
                    try:
                        self.seeds[h.digest] = opened(h, self.core.manifest, self.name, key)
                    except PeerFault:
                        return shuffler.Unopened(h)
                self.ring.headers_pass(self, h)
            case shuffler.Accuse(evidence):
                self.ring.evidence.append(evidence.silo)
                self.ring.accuse(self, evidence)
            case shuffler.Drop() if isinstance(event, shuffler.EvidenceIn):
                self.ring.accuse(self, event.evidence)
            case shuffler.Count(h):
                return shuffler.Counted(h)
            case shuffler.Release():
                self.release(effect)
            case shuffler.Measure(manifest, context, coin):
                self.measuring = coin
                scalars = self.lies.measures(self.measure(coin))
                return shuffler.Measured(manifest, context, coin, scalars, self.lies.states(self.trapped(coin)))
            case shuffler.Prove(manifest, subject, check):
                proofs, false = self.prove(subject, check)
                return shuffler.Proven(manifest, check, self.lies.proves(proofs), self.lies.accuses(false))
            case shuffler.Convict(_, _, verdict):
                self.ring.convicts(verdict, self.out if verdict.case.charge is Charge.ARRIVAL else None)
            case shuffler.Investigate(manifest, finding, subject, check):
                truth = self.truth(finding.kind, subject, check.coin)
                return shuffler.Investigated(manifest, finding, subject, check, truth)
        return None

    def release(self, effect: shuffler.Release) -> None:
        """Take the masks off, put the pad on, sign for it, and send it on."""
        m, c = self.core.manifest, effect.cohort
        shape = layout(m)
        if effect.roots:
            self.came, self.roots = bodies_root(effect.roots), effect.bodies
            self.taken, added = shape.body(), shape.body()
            for p in c.participants:
                shape.add_body(self.taken, self.bodies[p.silo])
                for _ in range(self.lies.counts(p.silo)):
                    shape.add_body(added, self.bodies[p.silo])
        else:
            assert self.taken is not None
            added = self.taken.copy()
        context = m.context(m.layer(self.name))
        wanted = self.lies.removes(c.silos)
        of = {p.silo: p.header for p in c.participants}
        cover(-1, added, m, [(self.seeds[of[name]], context) for name in wanted])
        self.pad = (effect.pad, PadContext(c.digest, b"", self.name, m.chunk_parameters))
        cover(1, added, m, [self.pad])
        self.out = self.lies.sends(added, m)
        trail = Trail(self.name, c.digest, b"", self.came, vector_root(self.out, m), pad_digest(effect.pad))
        trail = self.lies.signs(trail).signed(identity(self.name))
        self.ring.pass_on(self, m, self.lies.closes(c), self.out.copy(), (*self.trails, trail), self.roots)
        again = self.lies.tells_again(trail)
        if again is not None:
            other = again.signed(identity(self.name))
            self.ring.pass_on(self, m, self.lies.closes(c), self.out.copy(), (*self.trails, other), self.roots)

    def take_sum(
        self, m: Manifest, c: Cohort, body: Bytes, trails: tuple[Trail, ...], roots: tuple[SignedRoot, ...]
    ) -> None:
        """Take in what the hop before sends."""
        if self.core.attempt is None or self.core.manifest != m:
            return
        self.core.step(shuffler.Tick(self.ring.now))
        self.ring.check_stream(m, c, body, trails, roots, m.chain[: m.layer(self.name) - 1])
        try:
            check_told_once(self.trails, trails, m, self.ring.f)
        except EquivocationError as error:
            self.step(shuffler.LieSeen(error.verdict))
            raise
        self.taken, self.came, self.trails, self.roots = body, trails[-1].sent, trails, roots
        self.step(shuffler.CohortIn(c))

    def measure(self, coin: bytes) -> tuple[Scalars, ...]:
        """Fold what came in, what went out, and the pad."""
        assert self.taken is not None
        assert self.out is not None
        assert self.pad is not None
        return tuple(scalars_of(coin, layout(self.core.manifest), [self.taken, self.out], [self.pad]))

    def trapped(self, coin: bytes) -> Trapped:
        """Say what came in and went out at the traps, and commit to the pad there."""
        assert self.taken is not None
        assert self.out is not None
        assert self.pad is not None
        return self.ring.traps(coin, self.core.manifest).of_hop(self.taken, self.out, *self.pad)

    def prove(self, subject: Subject, check: CheckTranscript) -> tuple[bytes, tuple[str, ...]]:
        """Prove what was removed at the traps, or name the silos that keep it from that; a liar may have no proof."""
        m = self.core.manifest
        traps, layer = self.ring.traps(check.coin, m), m.layer(self.name)
        sealed = {p.silo: (self.seeds[p.header], m.context(layer)) for p in subject.cohort.participants}
        assert self.pad is not None
        if false := false_commitments(traps, check, layer, sealed):
            return b"", false
        try:
            return prove(traps, check, self.name, m.chain, sealed, self.pad, self.ring.rng), ()
        except LocalFault:
            return b"", ()

    def truth(self, kind: EquationKind, subject: Subject, coin: bytes) -> tuple[tuple[str, Scalars], ...]:
        """Find out what is true of others' claims."""
        m = self.core.manifest
        shape, layer = layout(m), m.layer(self.name)
        if kind is EquationKind.HOP:
            context = m.context(layer)
            secrets = [(self.seeds[p.header], context) for p in subject.cohort.participants]
            return tuple(zip(subject.cohort.silos, scalars_of(coin, shape, (), secrets), strict=True))
        if layer == 1:
            bodies = [self.bodies[name] for name in subject.cohort.silos]
            return tuple(zip(subject.cohort.silos, self.ring.traps(coin, m).forms(bodies), strict=True))
        assert self.taken is not None
        return ((m.chain[layer - 2], self.ring.traps(coin, m).forms([self.taken])[0]),)

    def vector_of(self, name: str) -> Bytes | None:
        """The vector that came from somebody."""
        return self.bodies.get(name, self.taken)


def _copied(fact: Any) -> Any:
    def copy(one: Any) -> Any:
        if isinstance(one, Secret):
            return one.copy()
        return tuple(copy(part) for part in one) if isinstance(one, tuple) else one

    match fact:
        case shuffler.Padded():
            return replace(fact, pad=copy(fact.pad))
        case shuffler.KeysMade():
            return replace(fact, keys=copy(fact.keys))
    return fact


class Silo(Node):
    """A silo: its core, its journal, and the model that it has computed."""

    def begin(self) -> None:
        """Recall what the journal has."""
        self.core = silo.Silo(self.ring.f, identity(self.name))
        for fact in self.journal:
            self.core.recall(fact)
        if self.lives == 1:  # its disk
            self.at = 0
            self.model, self.server = self.ring.first
        self.sealing: silo.Sealing | None = None
        self.body: Bytes | None = None
        self.root = b""

    def perform(self, effect: silo.Effect, event: silo.Event) -> Any:
        """Carry an effect out."""
        match effect:
            case silo.Follow():
                self.follow()
            case silo.TakePart(m):
                self.take_part(m)
            case silo.Show(toss):
                self.ring.tell(self, lambda: self.ring.hears(self, leading.TossIn(toss, self.ring.now), "toss"))
            case silo.Measure(manifest, coin):
                scalars, trapped = self.lies.measures(self.measure(coin)), self.lies.states(self.trapped(coin))
                return silo.Measured(manifest, coin, scalars, trapped)
            case silo.Answer(said):
                self.ring.tell(self, lambda: self.ring.hears(self, leading.StatedIn(said, self.ring.now), "scalars"))
        return None

    def take_part(self, m: Manifest) -> None:
        """Send the body under fresh masks, with fresh blinders."""
        self.sealing = self.lies.seed(self.core.sealing(m, self.ring.rng))
        body = self.ring.frozen(self.name, m)
        shape = layout(m)
        if shape.blinders:
            shape.part(body, shape.value_chunks)[:] = draw_blinders(shape, self.ring.rng)
        cover(1, body, m, [(seed, m.context(layer)) for layer, seed in self.sealing.seeds])
        self.body, self.root = body, vector_root(body, m)
        signature = identity(self.name).sign(trailer_digest(self.sealing.header.digest, self.root))
        sent = self.lies.body(body.copy(), m)
        self.ring.tell(self, lambda: self.ring.submit(self, m, sent, signature))

    def measure(self, coin: bytes) -> tuple[Scalars, ...]:
        """Fold the body, and the mask for each hop."""
        m = self.core.current
        assert m is not None
        assert self.sealing is not None
        assert self.body is not None
        masks = [(seed, m.context(layer)) for layer, seed in self.sealing.seeds if layer]
        return tuple(scalars_of(coin, layout(m), [self.body], masks))

    def trapped(self, coin: bytes) -> Trapped:
        """Say what was sent at the traps, and commit to the mask for each hop there."""
        m = self.core.current
        assert m is not None
        assert self.sealing is not None
        traps = self.ring.traps(coin, m)
        seeds = [(layer, seed, m.context(layer)) for layer, seed in self.sealing.seeds]
        return traps.of_silo(traps.vectors([self.ring.frozen(self.name, m)])[0], seeds) if traps else NO_TRAPS

    def hear(self, subject: Subject) -> None:
        """Be asked for the share of the coin."""
        if self.sealing is None or self.sealing.share is None:
            return  # it was started again
        share = Secret(self.lies.share(bytes(bytearray(self.sealing.share.value))))
        self.ring.trying(self, lambda: self.step(silo.CheckIn(subject, self.sealing_digest, self.root, share)))

    @property
    def sealing_digest(self) -> bytes:
        """The header of what was sent."""
        return b"" if self.sealing is None else self.sealing.header.digest

    def follow(self) -> None:
        """Compute the models of the rounds that were applied since, from the sums that were released."""
        for record in self.core.log.records[self.at + 1 :]:
            if record.outcome is Outcome.APPLIED:
                lead = self.ring.lead
                kept = lead.sums[record.round, record.attempts[-1].attempt]
                transcript, body = lead.lies.publishes(kept[0], kept[1].copy())
                check_transcript(transcript, record, self.ring.f)
                with relayed(self.ring.f):
                    check_vector(body, transcript, self.ring.f)
                found = self.ring.compute(transcript, body.copy(), self.model, self.server)
                if self.ring.digests(*found) != (record.model_after, record.state_after):
                    raise PeerFault(Reason.WRONG_STEP, "another model than the sum makes", peer=AGGREGATOR)
                self.model, self.server = found
            self.at = record.round


class Lead(Node):
    """The aggregator: its core, its journal, the models and sums on its disk, and the vector that came."""

    def begin(self) -> None:
        """Recall what the journal has."""
        self.measuring = b""
        if self.lives == 1:
            self.sums: dict[tuple[int, int], tuple[Transcript, Bytes]] = {}
            self.models = {self.ring.digests(*self.ring.first): self.ring.first}
        self.core = leading.Aggregator(self.ring.f, identity(AGGREGATOR), self.ring.rng)
        for fact in self.journal:
            self.core.recall(fact)
        self.seeds: dict[bytes, Secret] = {}
        self.headers: dict[bytes, Header] = {}
        self.body: Bytes | None = None
        self.trails: tuple[Trail, ...] = ()
        self.cohort: Cohort | None = None
        self.asks: list[Callable[[], None]] = []
        self.ring.queue.append(self.start)

    def start(self) -> None:
        """Begin, or go on, with what hops know."""
        self.step(leading.Awake(self.ring.now))

    def load(self) -> None:
        """Go on with the model that is on record."""
        last = self.core.log.last
        digests = (last.model_after, last.state_after) if last else self.ring.digests(*self.ring.first)
        kept = [t for (number, _), (t, _) in sorted(self.sums.items()) if number == self.core.round]
        pending = leading.Pending(kept[-1].manifest, kept[-1].ready) if kept else None
        self.step(leading.Start(digests[0], digests[1], SCHEMA, self.ring.now, pending))

    @property
    def published(self) -> tuple[Record, ...]:
        """The records that count."""
        return tuple(record for record in self.core.log.records if record.countersignatures)

    def ask(self, hops: Iterable[str], event: Any, take: Callable[[str, list[Any]], Any]) -> None:
        """Ask hops; what is not answered is asked again when nothing else happens."""

        def once() -> None:
            for hop in hops:
                self.ring.tell(self, partial(self.asked, hop, event, take))

        self.asks = [once]
        once()

    def asked(self, name: str, event: Any, take: Callable[[str, list[Any]], Any]) -> None:
        """Ask one hop once."""
        hop = self.ring.hops[name]
        try:
            hop.lies.speaks(type(event).__name__)
            answer = take(name, hop.step(event))
        except (Killed, Silent):
            return
        except PeerFault as fault:
            self.ring.refused(name, fault)
            manifest = getattr(event, "manifest", b"")
            lost = fault.reason in LOST and isinstance(manifest, bytes) and manifest
            kind = leading.PadRefused if isinstance(event, shuffler.RevealIn) else leading.HopLost
            answer = kind(name, manifest, str(fault), self.ring.now) if lost else None
            answer = answer or leading.HopFailed(name, str(fault), self.ring.now)
        if answer is not None:
            self.ring.trying(self, lambda: self.step(answer))

    def perform(self, effect: leading.Effect, event: leading.Event) -> Any:
        """Carry an effect out."""
        ring, now = self.ring, self.ring.now
        match effect:
            case leading.AskHeads(life, start, hops):
                self.ask(hops, shuffler.Show(ring.f.digest, life, start, self.core.life_signature), self._shows)
            case leading.Load():
                ring.tell(self, self.load)
            case leading.AskKeys():
                number = (effect.round, effect.attempt, effect.silos)
                for hop in ring.hops.values():
                    for record in self.published[hop.core.log.round :]:
                        ring.event(self, hop, shuffler.RecordIn(record, self.core.life))
                asked = shuffler.Prepare(ring.f.digest, *number, 0, effect.head, now, self.core.life)
                self.ask(effect.chain, asked, self._keys)
            case leading.OpenAt(m, head):
                self.seeds, self.headers, self.body, self.trails = {}, {}, None, ()
                self.ask(
                    reversed(m.chain),
                    shuffler.Open(m, head, now, self.core.life),
                    lambda hop, _: leading.OpenedAt(hop, m.digest, now),
                )
            case leading.Announce(m):
                self.asks = []
                for one in ring.silos.values():
                    ring.event(self, one, silo.Announced(m))
            case leading.Expand(h, key):
                self.headers[h.digest] = h
                if key is not None:
                    try:
                        self.seeds[h.digest] = opened(h, self.open, AGGREGATOR, key)
                    except PeerFault:
                        return leading.Unopened(h)
            case leading.Take(c):
                self.cohort = c
            case leading.AskTosses(_, subject):
                self.asks = [lambda: self.ask_tosses(subject)]
                self.ask_tosses(subject)
            case leading.AskScalars(m, subject, tosses, coin):
                self.ask_scalars(m, subject, self.lies.passes(tosses), coin)
            case leading.AskProofs(m, subject, check):
                proves = shuffler.ProveIn(m.digest, subject.ready.trails, subject.bodies, check)
                self.ask(m.chain, proves, self._proved)
            case leading.AskDefence(m, finding, subject, check):
                if finding.where == AGGREGATOR and self.lies.conceals():
                    signs = shuffler.ReadyIn(m.digest, subject.ready.trails, self.core.life, check)
                    self.ask(m.chain, signs, self._agreed)
                    return None
                if finding.where == AGGREGATOR:
                    return self.defend(m, finding, subject, check)
                charge = shuffler.ChargeIn(m.digest, subject.ready.trails, subject.bodies, check)
                self.ask([finding.where], charge, self._defence)
            case leading.Convict(_, _, verdict, vector):
                ring.convicts(verdict, vector)
            case leading.AskReady(ready, chain, check):
                self.ask(chain, shuffler.ReadyIn(ready.manifest, ready.trails, self.core.life, check), self._agreed)
            case leading.Keep(m, ready, signatures, bodies, check):
                assert self.body is not None
                assert self.cohort is not None
                of = self.cohort.participants
                seeds = tuple(self.seeds[p.header].copy() for p in of)
                headers = tuple(self.headers[p.header] for p in of)
                kept = Transcript(m, self.cohort, headers, ready, signatures, (), seeds, bodies, check)
                self.sums[m.round, m.attempt] = (kept, self.body)
            case leading.AskPads(ready, signatures, bond):
                chain = tuple(trail.hop for trail in ready.trails)
                self.ask(chain, shuffler.RevealIn(ready.manifest, signatures, self.core.life, bond), self._pad)
            case leading.Apply(m, _, pads):
                return self.apply(m, tuple(pad for _, pad in pads))
            case leading.AskStore(record, hops):
                self.ask(hops, shuffler.RecordIn(record, self.core.life), self._stored)
            case leading.Publish():
                for one in ring.silos.values():
                    ring.event(self, one, silo.RecordsIn(self.published))
            case leading.GiveUp():
                ring.gave_up.append(effect)
            case leading.Finish():
                ring.finished = effect
        return None

    @property
    def open(self) -> Manifest:
        """The attempt that is open."""
        found: Manifest | None = self.core.manifest
        assert found is not None
        return found

    def ask_tosses(self, subject: Subject) -> None:
        """Ask the silos of the cohort for their shares."""
        for name in subject.cohort.silos:
            self.ring.tell(self, partial(self.ring.silos[name].hear, subject))

    def ask_scalars(self, m: Manifest, subject: Subject, tosses: tuple[Toss, ...], coin: bytes) -> None:
        """Ask everybody for scalars, and compute one's own."""
        ring, self.measuring = self.ring, coin
        asked = shuffler.CoinIn(m.digest, subject.ready.trails, subject.bodies, tosses)
        self.ask(m.chain, asked, self._stated)
        hops = self.asks[0]

        def silos() -> None:
            for name in subject.cohort.silos:
                one = ring.silos[name]
                ring.event(self, one, silo.CoinIn(tosses))

        self.asks = [hops, silos]
        silos()
        assert self.body is not None
        own = scalars_of(coin, layout(m), [self.body])
        trapped = self.lies.states(ring.traps(coin, m).of_aggregator(self.body))
        said = Statement(AGGREGATOR, subject.context, coin, self.lies.measures(tuple(own)), trapped=trapped)
        said = said.signed(identity(AGGREGATOR))
        ring.tell(self, lambda: ring.hears(self, leading.StatedIn(said, ring.now), "scalars"))

    def defend(self, m: Manifest, finding: Any, subject: Subject, check: Any) -> leading.DefenceIn:
        """Show what came, if the last hop has lied about it."""
        assert self.body is not None
        last = m.chain[-1]
        truth = {last: self.ring.traps(check.coin, m).forms([self.body])[0]}
        roots = {last: signed_root(subject, AGGREGATOR, last, m)}
        made = defend(finding, check, m.chain, truth, {}, roots, identity(AGGREGATOR))
        return leading.DefenceIn(made, self.ring.now, self.body)

    def apply(self, m: Manifest, pads: tuple[Secret, ...]) -> leading.Event:
        """Make the next model of the sum, as every silo will."""
        transcript, body = self.sums[m.round, m.attempt]
        transcript = replace(transcript, pads=tuple(pad.copy() for pad in pads))
        self.sums[m.round, m.attempt] = (transcript, body)
        case = false_pad(transcript, self.ring.f)
        if case is not None:
            return leading.PadsFalse(case, self.ring.now)
        last = self.core.log.last
        assert last is not None
        try:
            found = self.ring.compute(transcript, body.copy(), *self.models[last.model_after, last.state_after])
        except PeerFault as fault:
            return leading.SumRefused(m.digest, str(fault), self.ring.now)
        found = (self.lies.applies(found[0]), self.lies.steps(found[1]))
        digests = self.ring.digests(*found)
        self.models[digests] = found
        return leading.SumApplied(m.digest, *digests, self.ring.now)

    def take_sum(
        self, m: Manifest, c: Cohort, body: Bytes, trails: tuple[Trail, ...], roots: tuple[SignedRoot, ...]
    ) -> None:
        """Take in the padded sum."""
        if self.core.manifest != m:
            return
        self.ring.check_stream(m, c, body, trails, roots, m.chain)
        try:
            check_told_once(self.trails, trails, m, self.ring.f)
        except EquivocationError as error:
            self.step(leading.LieSeen(error.verdict, self.ring.now))
            raise
        self.step(leading.CohortIn(c))
        self.body, self.trails = body, trails
        self.step(leading.SumIn(m.digest, trails, self.ring.now, roots))
        for hop in (self.ring.hops[name] for name in m.chain):
            self.ring.event(self, hop, shuffler.Delivered(m.digest))

    # What hops answer

    def _shows(self, hop: str, effects: list[Any]) -> leading.Event:
        return leading.HeadIn(hop, _last(effects, shuffler.Shows).shown, self.ring.now)

    def _keys(self, hop: str, effects: list[Any]) -> leading.Event:
        answer = _last(effects, shuffler.Keys)
        return leading.KeysIn(hop, answer.keys, answer.last_released, self.ring.now)

    def _stated(self, hop: str, effects: list[Any]) -> leading.Event:
        return leading.StatedIn(_last(effects, shuffler.Answer).statement, self.ring.now)

    def _proved(self, hop: str, effects: list[Any]) -> leading.Event:
        shown = effects[-1]
        if isinstance(shown, shuffler.Defend):
            return leading.DefenceIn(shown.defence, self.ring.now)
        return leading.ProofIn(shown.proof, self.ring.now)

    def _defence(self, hop: str, effects: list[Any]) -> leading.Event:
        made: Defence = _last(effects, shuffler.Defend).defence
        vector = self.ring.hops[hop].vector_of(made.name) if made.root else None
        return leading.DefenceIn(made, self.ring.now, vector)

    def _agreed(self, hop: str, effects: list[Any]) -> leading.Event | None:
        if any(isinstance(effect, shuffler.Convict) for effect in effects):
            return None
        return leading.AgreedIn(hop, self.open.digest, _last(effects, shuffler.Agree).signature)

    def _pad(self, hop: str, effects: list[Any]) -> leading.Event:
        shown = self.ring.hops[hop].lies.shows(_last(effects, shuffler.Reveal).pad)
        return leading.PadIn(hop, self.open.digest, shown)

    def _stored(self, hop: str, effects: list[Any]) -> leading.Event | None:
        answer = next((e for e in effects if isinstance(e, shuffler.Countersign)), None)
        if answer is None:
            return None
        return leading.CountersignedIn(hop, answer.record.digest, answer.signature, self.ring.now)


LOST = (Reason.FENCED, Reason.ALREADY_RELEASED, Reason.WRONG_SEQUENCE, Reason.WRONG_PAD)


def _last(effects: list[Any], kind: type) -> Any:
    return next(effect for effect in reversed(effects) if isinstance(effect, kind))


class Ring:
    """One aggregator, its hops and silos, and a clock that moves when nothing else does."""

    def __init__(
        self,
        lies: dict[str, Honest] | None = None,
        kills: tuple[str, int] | None = None,
        seed: int = 0,
        f: Federation | None = None,
    ) -> None:
        """Begin; `lies` says who misbehaves, and `kills` who is killed before which of its effects."""
        self.f = f or federation()
        self.rng = Random(seed).randbytes  # noqa: S311 - drills are repeated by their seeds
        self.kills, self.now = kills, 0.0
        self.trace: list[tuple[str, int, str]] = []
        """Every effect that was carried out: whose, the number among its own, and of which kind."""
        self.queue: deque[Callable[[], None]] = deque()
        self.gave_up: list[leading.GiveUp] = []
        self.finished: leading.Finish | None = None
        self.verdicts: list[Verdict] = []
        self.vectors: list[Bytes | None] = []
        """What went with each."""
        self.evidence: list[str] = []
        """Silos that a hop has shown to have sealed garbage."""
        self.refusals: list[tuple[str, PeerFault]] = []
        """Who refused what, in order."""
        optimiser = Optimiser.of(self.f.policy)
        zeros: dict[str, Any] = {t.name: np.zeros(t.shape, np.float32) for t in SCHEMA.tensors}
        self.first = (zeros, optimiser.start(SCHEMA))
        self.state_schema = optimiser.state_schema(SCHEMA)
        told = lies or {}
        honest = Honest()
        self.hops = {name: Hop(name, self, told.get(name, honest)) for name in self.f.chain}
        self.silos = {name: Silo(name, self, told.get(name, honest)) for name in self.f.silo_names}
        self.lead = Lead(AGGREGATOR, self, told.get(AGGREGATOR, honest))

    def run(self, most: int = 40) -> "Ring":
        """Go on until the federation is done, or nothing happens any more."""
        for _ in range(most):
            self.settle()
            if self.lead.core.phase is leading.Phase.FINISHED:
                self.again()
                self.settle()
                return self
            self.again()
            self.settle()
            self.now += 15.0
            for hop in self.hops.values():
                self.event(hop, hop, shuffler.Tick(self.now))
            self.settle()
            self.tell(self.lead, lambda: self.trying(self.lead, lambda: self.lead.step(leading.Tick(self.now))))
        return self

    @property
    def model(self) -> Any:
        """The newest model of the aggregator."""
        last = self.lead.core.log.last
        return self.lead.models[last.model_after, last.state_after][0]

    def again(self) -> None:
        """Do what drivers do when nothing is under way: ask again, send again, and look whether hops are there."""
        lead, phase = self.lead, self.lead.core.phase
        for ask in tuple(lead.asks):
            ask()
        for one in self.silos.values():
            records = lead.published
            if one.core.log.round < len(records):
                self.event(one, one, silo.RecordsIn(lead.published))
            elif one.at + 1 < one.core.log.round:
                self.tell(one, partial(self.trying, one, one.follow))
        if phase is leading.Phase.CHECKING:
            for one in self.silos.values():
                if one.core.current is None:  # whoever comes back hears first what is open
                    self.event(lead, one, silo.Announced(lead.open))
        if phase in (leading.Phase.COLLECTING, leading.Phase.RELEASING):
            m = lead.open
            for name, hop in ((name, self.hops[name]) for name in m.chain):
                if hop.core.attempt is None or hop.core.manifest != m or hop.core.state is shuffler.State.GIVEN_UP:
                    lost = leading.HopLost(name, m.digest, "it does not have the attempt", self.now)
                    self.event(lead, lead, lost)
            for one in self.silos.values():
                if phase is leading.Phase.COLLECTING and one.core.counted != m.digest:
                    self.tell(one, partial(self.trying, one, partial(self.send_again, one, m)))

    def send_again(self, one: Silo, m: Manifest) -> None:
        """Have a silo send its body again, or hear of the attempt first if it was started again."""
        if one.core.current is None or one.core.current.digest != m.digest:
            one.step(silo.Announced(m))
        else:
            one.take_part(m)

    def settle(self) -> None:
        """Let everybody say what they have to say."""
        for _ in range(MOST_STEPS):
            if not self.queue:
                return
            try:
                self.queue.popleft()()
            except (Killed, Silent):
                continue
        raise AssertionError("there is no end to it")

    def tell(self, caller: Node, what: Callable[[], None]) -> None:
        """Do something later, if the caller is still there by then."""
        life = caller.lives
        self.queue.append(lambda: what() if caller.lives == life else None)

    def event(self, caller: Node, node: Node, event: Any) -> None:
        """Tell a node of an event later, which it may refuse."""
        self.tell(caller, partial(self.trying, node, partial(node.step, event)))

    def trying(self, node: Node, what: Callable[[], Any]) -> None:
        """Do something that the node may refuse."""
        try:
            what()
        except PeerFault as fault:
            self.refused(node.name, fault)
        except LocalFault:
            return

    def refused(self, node: str, fault: PeerFault) -> None:
        """Take note of a refusal."""
        self.refusals.append((node, fault))

    def hears(self, speaker: Node, event: leading.Event, step: str) -> None:
        """Let the aggregator hear somebody."""
        speaker.lies.speaks(step)
        self.trying(self.lead, lambda: self.lead.step(event))

    def convicts(self, verdict: Verdict, vector: Bytes | None) -> None:
        """Hear who lied; a third party looks at the evidence for itself, and hop 1 if it is about a silo."""
        again = decide(verdict.case, self.f, vector)
        assert again.culprit == verdict.culprit, "a third party names another"
        self.verdicts.append(verdict)
        self.vectors.append(vector)
        if verdict.culprit in self.f.silo_names and vector is None:
            first = self.hops[verdict.case.manifest.chain[0]]
            self.tell(self.lead, lambda: self.trying(first, lambda: first.step(shuffler.CaseIn(verdict.case))))

    # What passes

    def headers_pass(self, hop: Hop, h: Header) -> None:
        """Pass a header on."""
        chain = hop.core.manifest.chain
        place = chain.index(hop.name) + 1
        if place == len(chain):
            self.tell(hop, lambda: self.trying(self.lead, lambda: self.lead.step(leading.HeaderIn(h))))
            return
        after = self.hops[chain[place]]
        self.tell(hop, lambda: self.trying(after, lambda: after.step(shuffler.HeaderIn(h, hop.name))))

    def accuse(self, hop: Hop, evidence: Evidence) -> None:
        """Show the hop before why a header was refused."""
        chain = hop.core.manifest.chain
        place = chain.index(hop.name)
        if place:
            before = self.hops[chain[place - 1]]
            self.tell(hop, lambda: self.trying(before, lambda: before.step(shuffler.EvidenceIn(evidence))))

    def pass_on(
        self,
        hop: Hop,
        m: Manifest,
        c: Cohort,
        body: Bytes,
        trails: tuple[Trail, ...],
        roots: tuple[SignedRoot, ...],
    ) -> None:
        """Send a hop's output to the next one, which may refuse it."""
        place = m.chain.index(hop.name) + 1
        after = self.lead if place == len(m.chain) else self.hops[m.chain[place]]

        def passes() -> None:
            hop.lies.speaks("relay")
            if hop.core.state is shuffler.State.GIVEN_UP:  # its driver has ended the stream
                return
            try:
                if isinstance(after, Hop) and after.core.state is shuffler.State.OPEN:
                    for h in hop.core.attempt.headers.values():  # a stream begins with them
                        after.step(shuffler.HeaderIn(h, hop.name))
                after.take_sum(m, c, body, trails, roots)
            except Accusation as fault:
                self.event(hop, hop, shuffler.EvidenceIn(fault.evidence))
            except PeerFault as fault:
                who = PeerFault(fault.reason, fault.message, **{**fault.details, "peer": hop.name})
                self.refused(after.name, who)  # whoever sent it is known by its certificate
                self.trying(hop, lambda: hop.step(shuffler.SendRefused(m.digest, who)))

        self.tell(hop, passes)

    def check_stream(
        self,
        m: Manifest,
        c: Cohort,
        body: Bytes,
        trails: tuple[Trail, ...],
        roots: tuple[SignedRoot, ...],
        before: Sequence[str],
    ) -> None:
        """Check what a driver checks of a vector that comes in."""
        check_trails(trails, c.digest, tuple(before), self.f)
        if trails[-1].sent != vector_root(body, m):
            raise PeerFault(Reason.ROOT_MISMATCH, f"the chunks are not those that {before[-1]} signed", peer=before[-1])
        if checks(self.f):
            check_bodies(roots, c, trails[0].came, self.f)

    def submit(self, one: Silo, m: Manifest, sent: Bytes, signature: bytes) -> None:
        """Send a silo's body to hop 1."""
        one.lies.speaks("submit")
        first, sealing = self.hops[m.chain[0]], one.sealing
        if sealing is None:
            return
        header, root = sealing.header, one.root
        try:
            first.step(shuffler.HeaderIn(header, one.name))
            self.tell(one, lambda: self.trying(first, lambda: self._body(one, first, m, header, root, sent, signature)))
        except PeerFault as fault:
            self.refused(first.name, fault)

    def _body(
        self, one: Silo, first: Hop, m: Manifest, header: Header, root: bytes, sent: Bytes, signature: bytes
    ) -> None:
        first.bodies[one.name] = sent
        effects = first.step(shuffler.BodyIn(header, vector_root(sent, m), root, signature))
        for effect in effects:
            if isinstance(effect, shuffler.Acknowledge):
                one.step(silo.ReceiptIn(effect.receipt, root))

    def frozen(self, name: str, m: Manifest) -> Bytes:
        """The integers of a silo for this model: always the same."""
        number = self.f.silo_names.index(name) + 1
        values = Random(f"{number} {m.model.hex()}")  # noqa: S311
        tensors: dict[str, Any] = {
            t.name: np.array([values.uniform(-0.9, 0.9) for _ in range(t.size)], np.float32).reshape(t.shape)
            for t in m.schema.tensors
        }
        body = layout(m).body()
        for _ in Codec(m.schema, m.bounds, m.plan, m.chunk_parameters).encode(tensors, body=body):
            pass
        return body

    # What everybody computes

    def traps(self, coin: bytes, m: Manifest) -> Traps:
        """The traps that a coin draws."""
        return Traps.drawn(coin, m, self.f.policy)

    def digests(self, model: dict[str, Any], server: dict[str, Any]) -> tuple[bytes, bytes]:
        """Return the digests of a model and of the server's state."""
        return model_digest(SCHEMA, model), model_digest(self.state_schema, server)

    def compute(self, transcript: Transcript, body: Bytes, model: Any, server: Any) -> tuple[Any, Any]:
        """Make the next model of a released sum."""
        m = transcript.manifest
        uncover(body, transcript)
        mean = decode(body, m, len(transcript.cohort.participants), self.f)
        return next_model(self.f, m, [mean], model, server)

    @property
    def applied(self) -> bool:
        """Whether a sum was applied."""
        return any(record.outcome is Outcome.APPLIED for record in self.lead.core.log.records)
