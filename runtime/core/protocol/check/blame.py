"""Blame: who lied, from evidence that anybody can check who has the federation file.

A check that fails points to one equation, and that to one node: the hop, or whoever received what does not add up. That
node defends itself, signed. It opens one false claim: the key that it made for one silo and this attempt, or the vector
that was signed and came. If what it opens shows another to have lied, that one is named; if not, the node itself is,
since it states a total that its own evidence does not explain. An honest node knows the truth of every claim and opens
a false one, so no seed of two honest nodes is ever opened. Silence is no evidence: nobody is named for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import tamper
from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret, commitment, public_key, unseal
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import EquationKind, Finding, Scalars
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.check.proofs import check_claims, check_holds, false_commitments
from silomix.runtime.core.protocol.check.said import (
    CheckTranscript,
    Subject,
    Toss,
    check_said,
    check_subject,
    matches,
    pad_claims,
    told,
)
from silomix.runtime.core.protocol.check.trapped import Traps, committed
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity, verify
from silomix.runtime.core.protocol.messages import Manifest, body_root, chunk_digest
from silomix.runtime.core.protocol.release import Trail, pad_digest
from silomix.runtime.core.protocol.rules import check_manifest, layout


@dataclass(frozen=True)
class Defence:
    """What a node opens when an equation fails at it; nothing, if it has nothing to show."""

    node: str
    check: bytes
    """Digest of the transcript."""
    kind: EquationKind
    name: str = ""
    """Whose claim is false."""
    private: bytes = field(default=b"", repr=False)
    """At a hop: the key that it made for that silo and attempt."""
    root: bytes = b""
    """On an edge: of the vector that came, which goes with it."""
    signature: bytes = b""

    @cached_property
    def digest(self) -> bytes:
        """What the node signs."""
        return digest("defence", self.node, self.check, str(self.kind), self.name, self.private, self.root)

    def signed(self, identity: Identity) -> "Defence":
        """Sign it."""
        return replace(self, signature=identity.sign(self.digest))


class Charge(StrEnum):
    """What a case is about."""

    SHARE = "share"
    """A silo showed a share of the coin that it had not committed to."""
    EQUATION = "equation"
    """An equation of the check does not hold."""
    PAD = "pad"
    """A hop stated scalars of another pad than the one that it showed."""
    ARRIVAL = "arrival"
    """The check fails between the last hop and the aggregator, and the hop shows the vector that it sent."""
    TRAILS = "trails"
    """A hop signed two trails of one cohort."""
    PROOF = "proof"
    """A hop signed proofs of what it removed at the traps, and they do not hold."""
    COMMITMENT = "commitment"
    """A hop opens the key of a silo that it says committed to another mask at a trap."""


@dataclass(frozen=True)
class Case:
    """All that it takes to name a culprit, or to see that there is none. A vector may go with it."""

    charge: Charge
    manifest: Manifest
    subject: Subject | None = None
    """What the check was about; nothing if it had not begun."""
    toss: Toss | None = None
    check: CheckTranscript | None = None
    defence: Defence | None = None
    hop: str = ""
    """Whose pad it is."""
    pad: bytes = field(default=b"", repr=False)
    trails: tuple[Trail, ...] = ()
    """Two that one hop has signed."""

    @property
    def digest(self) -> bytes:
        """What a record names the evidence by."""
        return digest(
            "case",
            str(self.charge),
            self.manifest.digest if self.subject is None else self.subject.context,
            b"" if self.toss is None else self.toss.digest,
            b"" if self.check is None else self.check.digest,
            b"" if self.defence is None else self.defence.digest,
            self.hop,
            self.pad,
            *(trail.digest for trail in self.trails),
        )


@dataclass(frozen=True)
class Verdict:
    """Who lied, in a sentence, with what proves it."""

    culprit: str
    sentence: str
    case: Case = field(repr=False)


def decide(case: Case, federation: Federation, vector: Bytes | None = None) -> Verdict:
    """Look at the evidence for oneself, and name the culprit; refuse a case that proves nothing."""
    check_manifest(case.manifest, federation)
    subject = case.subject
    if case.charge is Charge.TRAILS:
        return _decide_trails(case, federation)
    if subject is None:
        raise _nothing("a case about a check needs what the check was about")
    check_subject(subject, case.manifest, federation)
    match case.charge:
        case Charge.SHARE:
            return _decide_share(case, subject, federation)
        case Charge.EQUATION:
            return _decide_equation(case, subject, federation, vector)
        case Charge.PAD:
            return _decide_pad(case, subject, federation)
        case Charge.ARRIVAL:
            return _decide_arrival(case, subject, federation, vector)
        case Charge.PROOF:
            return _decide_proof(case, subject, federation)
        case Charge.COMMITMENT:
            return _decide_commitment(case, subject, federation)


def _decide_share(case: Case, subject: Subject, federation: Federation) -> Verdict:
    one = case.toss
    if one is None or one.silo not in subject.cohort.silos:
        raise _nothing("a case about a share needs the share of a silo of the cohort")
    verify(federation.member(one.silo).key, one.digest, one.signature, one.silo)
    if one.ballot != tamper.ballot(subject.context, subject.commitments) or matches(one, subject):
        raise _nothing(f"the share of {one.silo} is the one that it committed to, or belongs to another check")
    return Verdict(one.silo, f"{one.silo} showed a share of the coin that it had not committed to", case)


def _decide_equation(case: Case, subject: Subject, federation: Federation, vector: Bytes | None) -> Verdict:
    check, defence = case.check, case.defence
    chain, silos = case.manifest.chain, subject.cohort.silos
    if check is None or defence is None:
        raise _nothing("a case about an equation needs the transcript and a defence")
    check_said(check, subject.context, silos, chain, federation)
    first = first_finding(check, federation, silos, chain)
    if first is None:
        raise _nothing("every equation of the check holds")
    verify(federation.member(defence.node).key, defence.digest, defence.signature, defence.node)
    if (defence.node, defence.check, defence.kind) != (first.where, check.digest, first.kind):
        raise _nothing(f"the defence is not that of {first.where}, where the first equation fails")
    opened = _opened(case.manifest, subject, defence, Traps.drawn(check.coin, case.manifest, federation.policy), vector)
    liars = tamper.arbitrate(federation.plan, check.arithmetic(chain), first, opened)
    culprit = liars[0]
    where = told(first, chain, federation)
    if culprit == first.where:
        return Verdict(culprit, f"{culprit} altered the sum, or lies about it: {where}, and it shows nobody else", case)
    return Verdict(culprit, f"{culprit} signed false scalars, as what {first.where} opened shows: {where}", case)


def _decide_arrival(case: Case, subject: Subject, federation: Federation, vector: Bytes | None) -> Verdict:
    """Both ends of the last edge have signed for one vector: whoever stated other scalars than it has lied."""
    check, manifest = case.check, case.manifest
    lead, last = federation.aggregator.name, manifest.chain[-1]
    if check is None or vector is None:
        raise _nothing("a case about what reached the aggregator needs the transcript, and the vector")
    check_said(check, subject.context, subject.cohort.silos, manifest.chain, federation)
    first = first_finding(check, federation, subject.cohort.silos, manifest.chain)
    if first is None or (first.kind, first.where) != (EquationKind.EDGE, lead):
        raise _nothing(f"the first equation to fail is not the one between {last} and {lead}")
    if vector_root(vector, manifest) != subject.ready.root:
        raise _nothing(f"the vector is not the one that {last} signed for and {lead} took in")
    true = Traps.drawn(check.coin, manifest, federation.policy).forms([vector])[0]
    culprit = lead if check.of(lead).passed_on(hop=False) != true else last
    return Verdict(culprit, f"{culprit} signed false scalars of what passed from {last} to {lead}", case)


def _decide_proof(case: Case, subject: Subject, federation: Federation) -> Verdict:
    """An honest hop that cannot prove says who keeps it from that: whoever signs no proof for one has lied."""
    check, chain = _checked(case, subject, federation), case.manifest.chain
    if len(check.proofs) != 1 or check.proofs[0].hop not in chain or check.proofs[0].check != check.said:
        raise _nothing("a case about proofs needs those of one hop, for what was said")
    proof = check.proofs[0]
    verify(federation.member(proof.hop).key, proof.digest, proof.signature, proof.hop)
    try:
        check_claims(proof, check, chain, federation)
    except PeerFault as fault:
        return Verdict(proof.hop, fault.message, case)
    raise _nothing(f"{proof.hop} has proved what it removed")


def _decide_commitment(case: Case, subject: Subject, federation: Federation) -> Verdict:
    """Make a silo's commitments again from what its hop has opened: one of the two has lied."""
    check, manifest, defence = _checked(case, subject, federation), case.manifest, case.defence
    if defence is None or defence.node not in manifest.chain or check.proofs:
        raise _nothing("a case about a commitment needs what a hop has opened")
    hop, silo = defence.node, defence.name
    verify(federation.member(hop).key, defence.digest, defence.signature, hop)
    if (defence.check, defence.kind) != (check.said, EquationKind.TRAP):
        raise _nothing(f"{hop} has opened something in another check")
    seed, layer = _opened_seed(manifest, subject, defence), manifest.layer(hop)
    traps = Traps.drawn(check.coin, manifest, federation.policy)
    if seed is not None and false_commitments(traps, check, layer, {silo: (seed, manifest.context(layer))}):
        return Verdict(silo, f"{silo} committed to another mask at a trap than it sealed to {hop}", case)
    return Verdict(hop, f"{hop} says that a silo committed to another mask at a trap, and shows none", case)


def _checked(case: Case, subject: Subject, federation: Federation) -> CheckTranscript:
    """Check that all was said, and every equation holds, of a check with traps: then hops have to prove."""
    check, silos, chain = case.check, subject.cohort.silos, case.manifest.chain
    if check is None or not federation.policy.traps:
        raise _nothing("a case about traps needs a policy that has some, and the transcript")
    check_said(check, subject.context, silos, chain, federation)
    if first_finding(check, federation, silos, chain) is not None:
        raise _nothing("an equation of the check fails: nobody has to prove anything")
    return check


def _decide_trails(case: Case, federation: Federation) -> Verdict:
    """What a hop sends follows from what came in, from the cohort, and from its pad, which is durable.

    Of two trails with different vectors that came in nothing follows: the hop may have been started again in between,
    and whoever was before it may have told two stories.
    """
    if len(case.trails) != 2:
        raise _nothing("a case about trails needs two of them")
    one, other = case.trails
    given = [(trail.hop, trail.cohort, trail.grouping, trail.came) for trail in case.trails]
    if one.digest == other.digest or given[0] != given[1]:
        raise _nothing("the trails are the same, or of two hops, or of two cohorts, or not of the same that came in")
    if one.hop not in case.manifest.chain:
        raise _nothing(f"{one.hop} has no part in that attempt")
    for trail in case.trails:
        verify(federation.member(trail.hop).key, trail.digest, trail.signature, trail.hop)
    return Verdict(one.hop, f"{one.hop} signed two different trails of one sum", case)


class EquivocationError(PeerFault):
    """A refusal of trails that contradict what the same hop has signed before, with the evidence."""

    def __init__(self, verdict: Verdict) -> None:
        """The sentence is for people; what counts is the evidence."""
        super().__init__(Reason.TAMPERED, verdict.sentence, peer=verdict.culprit)
        self.verdict = verdict


def check_told_once(known: Sequence[Trail], came: Sequence[Trail], manifest: Manifest, federation: Federation) -> None:
    """Check that trails whose signatures hold are those that came before, if any did; name whoever signed two.

    Each names what the one before it sent, so that at the first difference the same came in.
    """
    for one, other in zip(known, came, strict=False):
        if one.digest != other.digest:
            case = Case(Charge.TRAILS, manifest, trails=(one, other))
            raise EquivocationError(decide(case, federation))


def first_finding(
    check: CheckTranscript, federation: Federation, silos: tuple[str, ...], chain: tuple[str, ...]
) -> Finding | None:
    """Return the first equation along the chain that fails."""
    return next(iter(check.findings(federation.plan, silos, chain)), None)


def _opened(
    manifest: Manifest, subject: Subject, defence: Defence, traps: Traps, vector: Bytes | None
) -> dict[str, Scalars]:
    """Recompute a claim from what was opened; an opening that is none counts for nothing."""
    name = defence.name
    if not name:
        return {}
    if defence.kind is EquationKind.EDGE:
        if defence.root != signed_root(subject, defence.node, name, manifest):
            return {}
        if vector is None or vector_root(vector, manifest) != defence.root:
            raise _nothing(f"the vector that {defence.node} opened is missing, or is another")
        return {name: traps.forms([vector])[0]}
    seed = _opened_seed(manifest, subject, defence)
    context = manifest.context(manifest.layer(defence.node))
    return {} if seed is None else {name: scalars_of(traps.coin, traps.shape, (), [(seed, context)])[0]}


def _opened_seed(manifest: Manifest, subject: Subject, defence: Defence) -> Secret | None:
    """Open what a silo sealed to a hop with the key that the hop shows; nothing, if it is not that key."""
    name = defence.name
    key = manifest.key_for(defence.node, name)
    if name not in subject.cohort.silos or key is None or len(defence.private) != len(key.public_key):
        return None
    private, layer = Secret(defence.private), manifest.layer(defence.node)
    if public_key(private) != key.public_key:
        return None
    sealed = subject.header_of(name).seeds[layer - 1]
    context = manifest.context(layer)
    try:
        seed = unseal(sealed.sealed, private, context)
    except PeerFault:
        return None  # whoever cannot open a seed says so when the header comes, and passes nothing on
    return seed if commitment(seed, context) == sealed.commitment else None


def accuse(check: CheckTranscript, silo: str, key: Secret, identity: Identity) -> Defence:
    """Open the key of a silo that has committed to another mask at a trap than it sealed to this hop."""
    private = bytes(bytearray(key.value))
    return Defence(identity.name, check.said, EquationKind.TRAP, silo, private).signed(identity)


def signed_root(subject: Subject, receiver: str, sender: str, manifest: Manifest) -> bytes:
    """Return the root of what a sender has signed for, of what a receiver took in; nothing if it sent it nothing."""
    place = (*manifest.chain, receiver).index(receiver)
    if place == 0:
        return subject.root_of(sender) if sender in subject.cohort.silos else b""
    return subject.ready.trails[place - 1].sent if sender == manifest.chain[place - 1] else b""


def vector_root(vector: Bytes, manifest: Manifest) -> bytes:
    """Return the root of a body, or of a vector between two hops; nothing for one that has not the length."""
    shape = layout(manifest)
    if len(vector) != shape.body_bytes:
        return b""
    parts = (shape.planes(shape.part(vector, i).data, i) for i in range(shape.chunks))
    return body_root([chunk_digest(i, shape.start(i), planes) for i, planes in enumerate(parts)])


def defend(
    finding: Finding,
    check: CheckTranscript,
    chain: tuple[str, ...],
    truth: Mapping[str, Scalars],
    keys: Mapping[str, Secret],
    roots: Mapping[str, bytes],
    identity: Identity,
) -> Defence:
    """Open the first claim that is false, as the node knows that has to defend itself."""
    made = Defence(identity.name, check.digest, finding.kind)
    layer = chain.index(identity.name) + 1 if identity.name in chain else 0
    for name in truth:
        said = check.of(name)
        if finding.kind is EquationKind.EDGE:
            if said.passed_on(hop=name in chain) != truth[name]:
                made = replace(made, name=name, root=roots[name])
                break
        elif said.scalars[layer] != truth[name]:
            made = replace(made, name=name, private=bytes(bytearray(keys[name].value)))
            break
    return made.signed(identity)


def _decide_pad(case: Case, subject: Subject, federation: Federation) -> Verdict:
    check, hop = case.check, case.hop
    chain = case.manifest.chain
    if check is None or hop not in chain or len(case.pad) != SEED_BYTES:
        raise _nothing("a case about a pad needs the transcript, a hop, and its pad")
    check_holds(check, subject.context, subject.cohort.silos, chain, federation)
    pad = Secret(case.pad)
    if pad_digest(pad) != subject.ready.trails[chain.index(hop)].pad:
        raise _nothing(f"that is not the pad that {hop} committed to")
    if hop not in false_pads(case.manifest, subject, check, {hop: pad}, federation):
        raise _nothing(f"{hop} has stated the scalars of its pad, and committed to it")
    return Verdict(hop, f"{hop} altered the sum, and lied about its pad in the check", case)


def false_pads(
    manifest: Manifest,
    subject: Subject,
    check: CheckTranscript,
    pads: Mapping[str, Secret],
    federation: Federation,
) -> tuple[str, ...]:
    """Recompute the scalars of pads that were shown, and name the hops that had stated others, or committed to any."""
    length, ready = manifest.chunk_parameters, subject.ready
    secrets = [(pad, ready.pad_context(hop, length)) for hop, pad in pads.items()]
    found = scalars_of(check.coin, layout(manifest), (), secrets)
    claims = pad_claims(check, manifest.chain)
    liars = {hop for hop, scalars in zip(pads, found, strict=True) if scalars != claims[hop]}
    if traps := Traps.drawn(check.coin, manifest, federation.policy):
        for hop, secret in zip(pads, secrets, strict=True):
            if check.of(hop).trapped.commitments != (committed(traps.pad_openings(*secret)),):
                liars.add(hop)
    return tuple(hop for hop in pads if hop in liars)


def _nothing(why: str) -> PeerFault:
    return PeerFault(Reason.FALSE_EVIDENCE, why)
