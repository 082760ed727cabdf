"""An aggregator that leads a tamper check, without any vectors: what everybody says is signed, and all scalars are 0.

Zeros fulfil every equation, so that a check of which nothing else is wrong holds; and nobody's pad has them, so that
every hop has lied about its own.
"""

from copy import copy
from dataclasses import replace
from typing import Any

from tests.core.protocol.federations import AGGREGATOR, cohort, federation, header, identity, pad, rng, secret
from tests.core.protocol.nets import root_of
from tests.core.protocol.test_aggregator import Node

from silomix.runtime.core.numbers import traps as arithmetic
from silomix.runtime.core.numbers.masks import AGGREGATOR as LAST_LAYER
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.masks import commitment as mask_commitment
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import rhos
from silomix.runtime.core.numbers.traps import Opening
from silomix.runtime.core.protocol.aggregator import (
    AgreedIn,
    AskTosses,
    CohortIn,
    Effect,
    HeaderIn,
    Keep,
    Phase,
    StatedIn,
    SumIn,
    TossIn,
)
from silomix.runtime.core.protocol.check.hearing import Hearing
from silomix.runtime.core.protocol.check.proofs import statements
from silomix.runtime.core.protocol.check.said import HOP_SCALARS, SignedRoot, Statement, Subject, Toss, commitment, toss
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, TrapProof, committed
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import Cohort, Header, Manifest, trailer_digest
from silomix.runtime.core.protocol.release import Trail, bodies_root, pad_digest
from silomix.runtime.core.protocol.rules import layout

F = federation(3, 2, level=Level.MALICIOUS, chunk_parameters=16)
TRAPPED = federation(3, 4, minimum_hops=3, level=Level.MALICIOUS, traps=1, chunk_parameters=16)
HIDDEN = Opening(0, 7)
"""What everybody has committed to at every trap."""


def seed(silo: str) -> Secret:
    """What a silo has sealed to the aggregator."""
    return secret("seed", silo)


def committed_header(m: Manifest, silo: str) -> Header:
    """A header that commits to a share of the coin, and to the aggregator's seed."""
    made = header(m, silo)
    last = replace(made.seeds[-1], commitment=mask_commitment(seed(silo), m.context(LAST_LAYER)))
    coin = commitment(share(silo), silo, m.digest)
    return replace(made, seeds=(*made.seeds[:-1], last), coin=coin).signed(identity(silo))


def share(silo: str) -> Secret:
    return secret("share", silo)


def bodies(c: Cohort) -> tuple[SignedRoot, ...]:
    """What the silos of a cohort have signed of their bodies."""
    made = []
    for one in c.participants:
        root = secret("body", one.silo).value
        made.append(SignedRoot(root, identity(one.silo).sign(trailer_digest(one.header, root))))
    return tuple(made)


def trails(m: Manifest, c: Cohort) -> tuple[Trail, ...]:
    """What every hop has signed: the last one has sent a vector of zeros."""
    came, made = bodies_root(body.root for body in bodies(c)), list[Trail]()
    for hop in m.chain:
        sent = root_of(layout(m).body(), m) if hop == m.chain[-1] else secret("sent", hop).value
        made.append(Trail(hop, c.digest, b"", came, sent, pad_digest(pad(hop, m.digest))).signed(identity(hop)))
        came = sent
    return tuple(made)


class Led(Node):
    """An aggregator at level malicious."""

    def __init__(self, f: Federation = F) -> None:
        self.sum: Keep | None = None
        super().__init__(f)
        self.start()

    def snapshot(self) -> dict[str, Any]:
        said = {} if self.core.hearing is None else {k: copy(v) for k, v in vars(self.core.hearing).items()}
        return {**super().snapshot(), "hearing": said}

    @property
    def hearing(self) -> Hearing:
        assert self.core.hearing is not None
        return self.core.hearing

    def summed(self, now: float = 0.0) -> tuple[Manifest, Cohort]:
        """Run an attempt up to the moment at which the padded sum of all silos is on its way."""
        m = self.announce(now)
        of = [committed_header(m, silo) for silo in self.f.silo_names]
        for one in of:
            self.feed(HeaderIn(one))
        c = cohort(m, of)
        self.feed(CohortIn(c))
        assert self.core.phase is Phase.RELEASING
        return m, c

    def asked(self, now: float = 0.0) -> Subject:
        """Run an attempt up to the moment at which silos are asked for their shares."""
        m, c = self.summed(now)
        (ask,) = self.feed(SumIn(m.digest, trails(m, c), now, bodies(c)))
        assert isinstance(ask, AskTosses)
        return ask.subject

    def toss(self, silo: str) -> Toss:
        return toss(self.hearing.subject, share(silo).value, identity(silo))

    def tossed(self, now: float = 0.0) -> list[Effect]:
        """Run an attempt up to the moment at which the coin is tossed."""
        self.asked(now)
        effects: list[Effect] = []
        for silo in self.f.silo_names:
            assert not effects
            effects = self.feed(TossIn(self.toss(silo), now))
        return effects

    def statement(self, name: str) -> Statement:
        """What somebody answers: zeros, and at the traps commitments to them."""
        chain, plan, traps = self.core.chain, self.f.plan, self.f.policy.traps
        lots = 1 if name == AGGREGATOR else HOP_SCALARS if name in chain else 1 + len(chain)
        zeros = tuple((0,) * n for n in rhos(plan))
        trapped = NO_TRAPS
        if traps:
            residues = tuple((0,) * traps for _ in plan.moduli)
            points = 1 if name in chain else 0 if name == AGGREGATOR else len(chain)
            blob = committed([HIDDEN] * traps * len(plan.moduli))
            trapped = Trapped((residues,) * (2 if name in chain else 1), (blob,) * points)
        context, coin = self.hearing.subject.context, self.hearing.coin
        return Statement(name, context, coin, (zeros,) * lots, trapped=trapped).signed(identity(name))

    def stated(self, now: float = 0.0) -> list[Effect]:
        """Run an attempt up to the moment at which everybody has answered the coin."""
        self.tossed(now)
        effects: list[Effect] = []
        for name in self.hearing.names:
            assert not effects
            effects = self.feed(StatedIn(self.statement(name), now))
        return effects

    def proof(self, hop: str) -> TrapProof:
        """What a hop proves: that zeros were removed."""
        check, openings = self.hearing.transcript, [HIDDEN] * (len(self.f.silos) + 1)
        wanted = statements(check, hop, self.core.chain, self.f.plan)
        made = b"".join(arithmetic.prove(one, openings, rng()) for one in wanted)
        return TrapProof(hop, check.said, made).signed(identity(hop))

    def revealed(self, now: float = 0.0) -> Manifest:
        """Run an attempt up to the moment at which every hop has shown its pad."""
        self.stated(now)
        m, made = self.core._open_manifest, self.core._release
        for hop in m.chain:
            effects = self.feed(AgreedIn(hop, m.digest, identity(hop).sign(made.digest)))
        (self.sum,) = [effect for effect in effects if isinstance(effect, Keep)]
        self.pads(m)
        assert self.core.phase is Phase.APPLYING
        return m

    def transcript(self) -> Transcript:
        """All that silos are shown of the sum that was released."""
        assert self.sum is not None
        m, subject = self.sum.manifest, self.hearing.subject
        pads = tuple(pad(hop, m.digest) for hop in m.chain)
        seeds = tuple(seed(silo) for silo in subject.cohort.silos)
        said = (subject.cohort, subject.headers, self.sum.ready, self.sum.signatures)
        return Transcript(m, *said, pads, seeds, self.sum.bodies, self.sum.check)
