"""What a node checks before it believes a message. Each check is a MUST of docs/protocol.md, section 5.

Every node runs these for itself against the federation file that it has pinned; nobody relies on a check that somebody
else has made.
"""

from collections.abc import Mapping

from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.bounds import check_bounds
from silomix.runtime.core.numbers.baseline import Baseline, float_body
from silomix.runtime.core.numbers.layout import Layout
from silomix.runtime.core.numbers.masks import (
    KEY_BYTES,
    SEALED_BYTES,
    Secret,
    commitment,
    public_key,
    small_order,
    unseal,
)
from silomix.runtime.core.numbers.plan import Granularity, Level
from silomix.runtime.core.numbers.schema import Schema
from silomix.runtime.core.numbers.traps import last_layer
from silomix.runtime.core.policy import LEAST_COHORT, Policy, TrapPlacement
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.messages import Cohort, Evidence, Grouping, Header, Manifest, RoundKey
from silomix.runtime.core.protocol.release import check_agreed

MOST_ATTEMPTS = 128
"""Attempts at one round, over all restarts: then it is abandoned. Each leaves a fact behind at every node."""
MOST_HEADERS = 16
"""Headers of one silo in one attempt: it makes a new one when it restarts, and each costs every hop a mask."""


def invited(manifest: Manifest, federation: Federation) -> tuple[str, ...]:
    """The silos of this round, in the order in which messages list them."""
    return manifest.invited or federation.silo_names


def layout(manifest: Manifest) -> Layout:
    """Every length of a body of this attempt."""
    weighted = manifest.plan.weight_levels > 1
    return Layout(manifest.plan, manifest.schema.parameters + weighted, manifest.chunk_parameters)


def baseline(manifest: Manifest) -> Baseline | None:
    """Return the literal mode of an attempt; None if a sum leaves the chain, as it should."""
    if manifest.granularity is Granularity.SUM:
        return None
    return Baseline(manifest.granularity, manifest.schema, manifest.plan, manifest.chunk_parameters)


def wire_encoding(manifest: Manifest) -> str:
    """What a body is made of, for metrics: residues as the plan encodes them, or plain values."""
    return "float32" if float_body(manifest.granularity) else str(manifest.plan.encoding)


def check_manifest(manifest: Manifest, federation: Federation) -> None:
    """Compare a manifest with the pinned federation file, field by field, and check every signature in it."""
    policy = federation.policy
    federation.check_same(manifest.federation, federation.aggregator.name)
    if manifest.round < 1 or manifest.attempt < 1:
        raise PeerFault(Reason.MALFORMED, f"round {manifest.round}, attempt {manifest.attempt}: both count from 1")
    check_round(manifest.round, federation)
    if manifest.attempt > MOST_ATTEMPTS:  # at level trusted no hop has made keys for it, and refused to
        raise PeerFault(Reason.WRONG_ATTEMPT, f"a round's attempts are 1 to {MOST_ATTEMPTS}", found=manifest.attempt)
    verify(federation.aggregator.key, manifest.digest, manifest.signature, federation.aggregator.name)
    if problem := pin_problem(manifest.schema, policy):
        raise PeerFault(Reason.WRONG_SCHEMA, f"the manifest's model {problem}")
    _expect(Reason.WRONG_PLAN, "plan", manifest.plan.digest, federation.plan.digest)
    check_bounds(policy, manifest.schema, manifest.bounds)
    for name, found, expected in (
        ("update", manifest.update, policy.update),
        ("granularity", manifest.granularity, policy.granularity),
        ("group_size", manifest.group_size, policy.group_size),
        ("chunk_parameters", manifest.chunk_parameters, policy.chunk_parameters),
        ("deadline_s", manifest.deadline_s, policy.deadline_s),
    ):
        _expect(Reason.WRONG_POLICY, name, found, expected)
    if manifest.minimum_cohort < federation.minimum_cohort:
        raise PeerFault(
            Reason.WRONG_POLICY,
            f"the manifest allows a cohort of {manifest.minimum_cohort}, the policy {federation.minimum_cohort}",
            found=manifest.minimum_cohort,
            expected=federation.minimum_cohort,
        )
    check_chain(manifest.chain, federation)
    _check_invited(manifest, federation)
    _check_bound(manifest, federation)
    _check_keys(manifest, federation)
    _check_fences(manifest, federation)


def pin_problem(schema: Schema, policy: Policy) -> str:
    """What is wrong with a model's schema, by the policy's pins, or nothing.

    All that a node allocates for a round follows from the schema, so it is checked before anything is allocated.
    """
    if policy.parameters and schema.parameters != policy.parameters:
        return f"has {schema.parameters} values, and the policy pins {policy.parameters}"
    if policy.schema and schema.digest.hex() != policy.schema:
        return f"has the schema {schema.digest.hex()[:16]}..., and the policy pins {policy.schema[:16]}..."
    if policy.traps:
        first, end = _trap_span(schema, policy)
        if end - first < policy.traps:
            return f"has {end - first} parameters among which traps are drawn, and the policy has {policy.traps} traps"
    return ""


def _trap_span(schema: Schema, policy: Policy) -> tuple[int, int]:
    if policy.trap_placement is TrapPlacement.RANDOM:
        return 0, schema.parameters
    try:
        return last_layer(schema)
    except LocalFault:  # it has buffers and nothing else
        return 0, 0


def trap_span(manifest: Manifest, policy: Policy) -> tuple[int, int]:
    """Return from where to where traps are drawn: among all coordinates, or those of the model's last layer."""
    if policy.trap_placement is TrapPlacement.RANDOM:
        return 0, layout(manifest).coordinates
    return _trap_span(manifest.schema, policy)


def check_round(round_: int, federation: Federation) -> None:
    """Check that the policy has such a round: nobody makes keys, or forgets any, for one that will never come."""
    if round_ > federation.policy.rounds:
        raise PeerFault(
            Reason.WRONG_ROUND,
            f"there is no round {round_}: the policy ends with {federation.policy.rounds}",
            found=round_,
            expected=federation.policy.rounds,
        )


def check_chain(chain: tuple[str, ...], federation: Federation) -> None:
    """Hold the aggregator to the agreed chain: were it to choose, it would choose hops that collude with it."""
    least = federation.chain_rule.minimum
    in_order = tuple(hop for hop in federation.chain if hop in chain)
    if chain != in_order or len(in_order) < least:
        raise PeerFault(
            Reason.WRONG_CHAIN,
            f"the chain {', '.join(chain) or 'is empty'}: it needs {least} or more hops of "
            f"{', '.join(federation.chain)}, in that order",
        )


def _check_invited(manifest: Manifest, federation: Federation) -> None:
    names = invited(manifest, federation)
    if list(manifest.invited) != sorted(set(manifest.invited)):
        raise PeerFault(Reason.MALFORMED, "the invited silos are not in order, or one is there twice")
    for name in manifest.invited:
        if name not in federation.silo_names:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{name!r} is invited and not on the roster", peer=name)
    if len(names) < manifest.minimum_cohort:
        raise PeerFault(
            Reason.COHORT_TOO_SMALL,
            f"{len(names)} silos are invited, fewer than the minimum of {manifest.minimum_cohort}",
            found=len(names),
            expected=manifest.minimum_cohort,
        )
    if names != federation.draw(manifest.applied + 1, manifest.model):
        raise PeerFault(Reason.WRONG_POLICY, "the silos of this round are not those that the policy draws")


def _check_bound(manifest: Manifest, federation: Federation) -> None:
    """Check whom a model is said to be bound to: a bare word would leave out any silo that the aggregator likes."""
    if len(manifest.earlier) >= manifest.attempt:
        raise PeerFault(
            Reason.WRONG_ATTEMPT, f"attempt {manifest.attempt} cannot come after {len(manifest.earlier)} others"
        )
    bond, names = manifest.bound, manifest.bound_to
    if bond is None:
        return
    if list(names) != sorted(set(names)) or not set(names) <= set(invited(manifest, federation)):
        raise PeerFault(Reason.MALFORMED, "the silos that the model is bound to are no cohort of this round")
    if len(names) < manifest.minimum_cohort:
        raise PeerFault(Reason.COHORT_TOO_SMALL, f"the model is said to be bound to {len(names)} silos")
    check_chain(bond.chain, federation)
    signatures = bond.signed_by(federation.aggregator.name)
    check_agreed(bond.agreed(manifest.model), signatures, bond.chain, federation)


def _check_keys(manifest: Manifest, federation: Federation) -> None:
    masked = manifest.plan.level is not Level.TRUSTED
    names = invited(manifest, federation) if masked else ()
    hops = [(h, s) for h in manifest.chain for s in names]
    # In groups the aggregator must not learn whose seed it opens, so one key serves all silos.
    own = [(federation.aggregator.name, s) for s in ([""] if masked and manifest.group_size else names)]
    for keys, wanted in ((manifest.hop_keys, hops), (manifest.aggregator_keys, own)):
        if [(k.hop, k.silo) for k in keys] != wanted:
            raise PeerFault(Reason.WRONG_KEYS, "round keys are missing, spare or misplaced")
        for key in keys:
            check_round_key(key, federation, manifest.head, manifest.round, manifest.attempt)


def _check_fences(manifest: Manifest, federation: Federation) -> None:
    fences = [(f.attempt, f.hop) for f in manifest.fences]
    if fences != sorted(set(fences)):
        raise PeerFault(Reason.MALFORMED, "the fences are not in order, or one is there twice")
    for fence in manifest.fences:
        hop = next((s for s in federation.shufflers if s.name == fence.hop), None)
        if hop is None:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{fence.hop!r} signed a fence and is not in the pool", peer=fence.hop)
        _expect(Reason.WRONG_ROUND, f"round of a fence of {fence.hop}", fence.round, manifest.round)
        if not 1 <= fence.attempt < manifest.attempt:
            raise PeerFault(
                Reason.WRONG_ATTEMPT, f"a fence of {fence.hop} is for attempt {fence.attempt}", peer=fence.hop
            )
        if fence.manifest not in manifest.earlier:
            raise PeerFault(
                Reason.WRONG_MANIFEST, f"a fence of {fence.hop} is for an attempt that is not listed", peer=fence.hop
            )
        verify(hop.key, fence.digest(federation.digest), fence.signature, fence.hop)


def check_round_key(key: RoundKey, federation: Federation, head: bytes, round_: int, attempt: int) -> None:
    """Check one round key's length, order, round, attempt and signature."""
    if len(key.public_key) != KEY_BYTES:
        raise PeerFault(Reason.WRONG_LENGTH, f"a round key has {KEY_BYTES} bytes", found=len(key.public_key))
    if small_order(key.public_key):
        raise PeerFault(Reason.WRONG_KEYS, f"a round key of {key.hop} is a point of small order", peer=key.hop)
    if key.round != round_ or key.last_released > round_:
        raise PeerFault(Reason.WRONG_ROUND, f"a key of {key.hop} is for round {key.round}, not {round_}", peer=key.hop)
    if key.attempt != attempt:
        raise PeerFault(
            Reason.WRONG_ATTEMPT, f"a key of {key.hop} is for attempt {key.attempt}, not {attempt}", peer=key.hop
        )
    verify(federation.member(key.hop).key, key.digest(federation.digest, head), key.signature, key.hop)


def check_header(header: Header, manifest: Manifest, federation: Federation) -> None:
    """Check that an invited silo signed this header for this attempt, with a seed for every layer."""
    _expect(Reason.WRONG_MANIFEST, "manifest", header.manifest, manifest.digest)
    silo = federation.member(header.silo)
    if header.silo not in invited(manifest, federation):
        raise PeerFault(Reason.NOT_INVITED, f"{header.silo} is not part of this round", peer=header.silo)
    masked = manifest.plan.level is not Level.TRUSTED
    wanted = [*manifest.chain, federation.aggregator.name] if masked else []
    if [s.recipient for s in header.seeds] != wanted:
        raise PeerFault(Reason.WRONG_KEYS, f"{header.silo}'s seeds are not one per layer", peer=header.silo)
    for seed in header.seeds:
        if len(seed.sealed) != SEALED_BYTES or len(seed.commitment) != DIGEST_BYTES:
            raise PeerFault(Reason.WRONG_LENGTH, f"{header.silo} sent a sealed seed of the wrong length")
        if small_order(seed.sealed[:KEY_BYTES]):
            raise PeerFault(
                Reason.SEAL_BROKEN, f"{header.silo} sealed a seed with a point of small order", peer=header.silo
            )
    _expect(Reason.WRONG_LENGTH, "number of chunks", header.chunks, layout(manifest).chunks)
    coin = DIGEST_BYTES if manifest.plan.level is Level.MALICIOUS else 0
    _expect(Reason.WRONG_LENGTH, "bytes of the commitment to the coin", len(header.coin), coin)
    verify(silo.key, header.digest, header.signature, header.silo)


def check_evidence(evidence: Evidence, header: Header, manifest: Manifest) -> None:
    """Look for oneself whether a seed does not open, or is not the one committed to; if it is, the accuser lies."""
    _expect(Reason.WRONG_MANIFEST, "manifest", evidence.manifest, manifest.digest)
    if (evidence.header, evidence.silo) != (header.digest, header.silo):
        raise PeerFault(Reason.FALSE_EVIDENCE, "the evidence is about another header", peer=evidence.recipient)
    key = manifest.key_for(evidence.recipient, evidence.silo)
    sealed = next((s for s in header.seeds if s.recipient == evidence.recipient), None)
    private = Secret(evidence.private)
    if key is None or sealed is None or key.silo != evidence.silo or public_key(private) != key.public_key:
        raise PeerFault(
            Reason.FALSE_EVIDENCE,
            f"what {evidence.recipient} opened is not the key that it made for {evidence.silo}",
            peer=evidence.recipient,
        )
    context = manifest.context(manifest.layer(evidence.recipient))
    try:
        opens = commitment(unseal(sealed.sealed, private, context), context) == sealed.commitment
    except PeerFault:
        opens = False
    if opens:
        raise PeerFault(
            Reason.FALSE_EVIDENCE,
            f"{evidence.recipient} says that the seed of {evidence.silo} does not open, and it does",
            peer=evidence.recipient,
        )


def check_step(silos: tuple[str, ...], before: tuple[str, ...], federation: Federation) -> None:
    """Check that two successive cohorts are equal or differ by as many silos as the policy wants."""
    differ, least = len(set(silos) ^ set(before)), federation.policy.cohort_step
    if 0 < differ < least:
        raise PeerFault(
            Reason.COHORT_STEP,
            f"the cohort differs from the last one by {differ}: the policy wants none, or {least} or more",
            found=differ,
            expected=least,
        )


def check_cohort(
    cohort: Cohort, manifest: Manifest, federation: Federation, headers: Mapping[bytes, Header] | None
) -> None:
    """Count the cohort for oneself; check that hop 1 signed it, and that each silo's header is known and its own.

    An aggregator to whom groups come has no headers: they would tell it whose seed is whose.
    """
    _expect(Reason.WRONG_MANIFEST, "manifest", cohort.manifest, manifest.digest)
    names = list(cohort.silos)
    if names != sorted(set(names)):
        raise PeerFault(Reason.MALFORMED, "the cohort is not in order, or has a silo twice")
    if not set(names) <= set(invited(manifest, federation)):
        raise PeerFault(Reason.NOT_INVITED, "the cohort has a silo that is not part of this round")
    least = max(manifest.minimum_cohort, federation.minimum_cohort, LEAST_COHORT)
    if len(names) < least:
        raise PeerFault(
            Reason.COHORT_TOO_SMALL,
            f"the cohort has {len(names)} silos, fewer than the minimum of {least}",
            found=len(names),
            expected=least,
        )
    first = federation.member(manifest.chain[0])
    verify(first.key, cohort.digest, cohort.signature, first.name)
    for participant in cohort.participants if headers is not None else ():
        assert headers is not None
        # Were the header another silo's, the masks of one silo could be taken off under the names of three.
        header = headers.get(participant.header)
        if header is None or header.silo != participant.silo:
            raise PeerFault(
                Reason.WRONG_SEQUENCE, f"the header of {participant.silo} never came", peer=participant.silo
            )


def check_grouping(grouping: Grouping, cohort: Cohort, manifest: Manifest, federation: Federation) -> None:
    """Check that hop 1 signed a partition of this very cohort, and that no group is smaller than the policy allows."""
    if len(grouping.groups) != len(cohort.participants) or 0 in grouping.sizes:
        raise PeerFault(Reason.MALFORMED, "the grouping is not one of this cohort, or has a gap in its numbers")
    check_sizes(grouping.sizes, cohort, manifest)
    first = federation.member(manifest.chain[0])
    verify(first.key, grouping.digest(cohort.digest), grouping.signature, first.name)


def check_sizes(sizes: tuple[int, ...], cohort: Cohort, manifest: Manifest) -> None:
    """Check the groups' sizes: a sum over two silos would show each of them the other."""
    least = max(manifest.group_size, LEAST_COHORT)
    if not sizes or min(sizes) < least:
        raise PeerFault(
            Reason.COHORT_TOO_SMALL,
            f"groups of {', '.join(map(str, sizes)) or 'nobody'}: each needs {least} silos or more",
            expected=least,
        )
    if sum(sizes) != len(cohort.participants):
        raise PeerFault(Reason.WRONG_KEYS, f"the groups have {sum(sizes)} silos, the cohort {len(cohort.participants)}")


def _expect(reason: Reason, what: str, found: object, expected: object) -> None:
    if found != expected:
        shown = (f.hex()[:16] if isinstance(f, bytes) else f for f in (found, expected))
        raise PeerFault(reason, "{}: {} instead of {}".format(what, *shown))
