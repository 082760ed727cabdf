"""R3 and the cohort: two sums that differ by one silo give it away, and so does a sum over one."""

from contextlib import suppress
from dataclasses import replace

from silomix.attacks.active.acts.casts import AGGREGATOR, WITH_FIRST
from silomix.attacks.active.liars.bodies import Passed, body_frames, make_body
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.measure import cosine
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, SECOND, VICTIM, Stage
from silomix.attacks.active.task import nought
from silomix.runtime.core.digest import DIGEST_BYTES
from silomix.runtime.core.protocol.messages import Bond, Cohort, Manifest, Participant
from silomix.runtime.core.protocol.release import Ready, Trail
from silomix.runtime.core.protocol.roundlog import Attempted
from silomix.runtime.core.protocol.roundlog import Outcome as Ended
from silomix.runtime.core.protocol.silo import State

WITH_HOP = "aggregator and shuffler-1"
SAMPLED = Cast(hops=(FIRST,), policy=(("subsample", 0.7),))
FRIENDS = Cast(silos=("silo-05", "silo-06"))
GROUPED = Cast(hops=(FIRST,), policy=(("group_size", 3),))


SAYS_S = 20.0
"""Time for a silo to read a record and to say what it thinks of it: a moment, but on a machine that is very busy."""


def _others(stage: Stage) -> tuple[str, ...]:
    return tuple(name for name in stage.honest_silos if name != VICTIM)


async def _passed(stage: Stage, manifest: Manifest, silos: tuple[str, ...], groups: tuple[int, ...] = ()) -> bool:
    """Have hop 1 close for these silos, and everybody sign for the release and show their pads; say whether they do."""
    await stage.submitted(manifest, FIRST)
    hop = stage.liar(FIRST)
    try:
        await hop.stream(SECOND, "Relay", hop.passed(manifest, silos, groups).frames())
        await stage.aggregator.release(manifest)
    except Refused:
        return False
    return True


@attack("second-cohort", Rule.R3, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def second_cohort(stage: Stage) -> Loot:
    """A round is tried again, with one silo left out: the difference of two sums would be its update."""
    us, number = stage.aggregator, stage.next_round()
    sums = []
    for attempt, silos in ((1, stage.honest_silos), (2, _others(stage))):
        manifest = await stage.begin(number, attempt=attempt, bound=None)
        if await _passed(stage, manifest, silos):
            sums.append(us.sum(manifest))
    if len(sums) < 2:
        return stage.loot_for("already_released", False, "one sum, over all silos", sums=len(sums))
    close = stage.closeness(sums[0] - sums[1], manifest)
    return stage.loot(close.read, "the difference of two sums", sums=2, **close.figures)


@attack("two-cohorts-in-one-attempt", Rule.R3, WITH_HOP, Outcome.REFUSED, WITH_FIRST, bites=False)
async def two_cohorts_in_one_attempt(stage: Stage) -> Loot:
    """Hop 1 closes the cohort twice in one attempt, once with the victim and once without."""
    manifest, hop = await stage.begin(), stage.liar(FIRST)
    await stage.submitted(manifest, FIRST)
    all_of_them = hop.passed(manifest, stage.honest_silos)
    passed = 0
    for one in (replace(all_of_them, chunks=(), whole=False), hop.passed(manifest, _others(stage)), all_of_them):
        with suppress(Refused):  # the first of them ends early, when shuffler-2 has closed for it
            await hop.stream(SECOND, "Relay", one.frames())
            passed += 1
    gained = passed > 1 or stage.came(manifest).silos == _others(stage)
    return stage.loot_for("already_released", gained, "cohorts that shuffler-2 has passed on", cohorts=passed)


@attack("regrouping", Rule.R3, WITH_HOP, Outcome.REFUSED, GROUPED)
async def regrouping(stage: Stage) -> Loot:
    """A round is tried again with the groups dealt otherwise: sums that differ by two silos' exchange."""
    us, number = stage.aggregator, stage.next_round()
    sums = []
    for attempt, groups in ((1, (0, 0, 0, 1, 1, 1)), (2, (0, 0, 1, 0, 1, 1))):
        manifest = await stage.begin(number, attempt=attempt)
        if await _passed(stage, manifest, stage.honest_silos, groups):
            sums.append(us.group_sums(manifest)[0])
    if len(sums) < 2:
        return stage.loot_for("already_released", False, "the sums of one grouping", groupings=len(sums))
    third, fourth = (stage.truth(name, manifest.model, number) for name in stage.honest_silos[2:4])
    exact = cosine(sums[0] - sums[1], third - fourth)
    return stage.loot(exact > 0.99, "the difference of two silos' updates", groupings=2, cosine=round(exact, 4))


# One model, or nearly one, in two rounds


async def _difference(stage: Stage, first: Manifest, second: Manifest, said: str) -> Loot:
    """Compare the sums of a round and of one without the victim."""
    us = stage.aggregator
    close = stage.closeness(us.sum(first) - us.sum(second), first)
    return stage.loot(close.read, said, **close.figures)


@attack("same-model-twice", Rule.R3, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def same_model_twice(stage: Stage) -> Loot:
    """A round is given up once its sum can be read, and the next one, on the same model, leaves one silo out."""
    us = stage.aggregator
    first = await stage.padded_round()
    await us.release(first)
    await us.publish(us.chronicle.abandoned())
    second = await stage.padded_round(silos=_others(stage), bound=None)
    await us.release(second)
    return await _difference(stage, first, second, "the difference of two sums on one model")


@attack("successive-models", Rule.R3, "aggregator", Outcome.CONCEDED, AGGREGATOR)
async def successive_models(stage: Stage) -> Loot:
    """One silo is kept out of the next round by being slow to it: two sums on successive models are compared."""
    first = await stage.whole_round()
    second = await stage.whole_round(silos=_others(stage))
    return await _difference(stage, first, second, "the difference of two sums on successive models")


# The cohort: each hop counts for itself


async def _relayed(stage: Stage, passed: Passed) -> bool:
    """Pass something on to shuffler-2, and say whether it was released."""
    try:
        await stage.liar(FIRST).stream(SECOND, "Relay", passed.frames())
        await stage.aggregator.release(passed.manifest)
    except Refused:
        return False
    return True


@attack("cohort-of-one", Rule.COHORT, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def cohort_of_one(stage: Stage) -> Loot:
    """Hop 1 closes the cohort with one silo in it."""
    manifest = await stage.begin()
    await stage.submitted(manifest, FIRST)
    passed = stage.liar(FIRST).passed(manifest, (VICTIM,))
    if not await _relayed(stage, passed):
        return stage.loot(False, "nothing left shuffler-2")
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    return stage.loot(close.read, "the sum over one silo", **close.figures)


@attack("cohort-below-the-minimum", Rule.COHORT, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def cohort_below_the_minimum(stage: Stage) -> Loot:
    """Hop 1 closes the cohort with one silo fewer than the policy allows."""
    manifest, few = await stage.begin(), stage.federation.minimum_cohort - 1
    await stage.submitted(manifest, FIRST)
    silos = (VICTIM, *_others(stage)[: few - 1])
    if not await _relayed(stage, stage.liar(FIRST).passed(manifest, silos)):
        return stage.loot(False, "nothing left shuffler-2", cohort=few)
    close = stage.closeness(stage.aggregator.sum(manifest) / few, manifest)
    return stage.loot(True, "a sum over fewer than the policy allows", cohort=few, **close.figures)


@attack("three-names", Rule.COHORT, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def three_names(stage: Stage) -> Loot:
    """Hop 1 names three silos, each with the header of the same one, so that one silo's masks are taken off."""
    manifest = await stage.begin()
    await stage.submitted(manifest, FIRST)
    under = dict.fromkeys(stage.honest_silos[:3], VICTIM)
    passed = stage.liar(FIRST).passed(manifest, under)
    if not await _relayed(stage, passed):
        return stage.loot(False, "nothing left shuffler-2")
    us, came = stage.aggregator, stage.came(manifest)
    came.headers = dict.fromkeys(came.silos[:1], came.headers[VICTIM])
    came.cohort = replace(passed.cohort, participants=passed.cohort.participants[:1])
    close = stage.closeness(us.sum(manifest), manifest)
    return stage.loot(close.read, "one silo's update under three names", **close.figures)


@attack("not-invited", Rule.COHORT, f"{WITH_HOP}, and a silo", Outcome.REFUSED, SAMPLED)
async def not_invited(stage: Stage) -> Loot:
    """Hop 1 passes on the header of a colluding silo that was not drawn, to fill the cohort up."""
    hop = stage.liar(FIRST)
    manifest = await stage.begin()
    outsider = min(set(stage.honest_silos) - set(manifest.invited))
    await stage.submitted(manifest, FIRST, manifest.invited)
    # It has no key of its own in the manifest, so it seals to another's.
    lender = manifest.invited[0]
    keys, own = (
        tuple(replace(key, silo=outsider) for key in made if key.silo == lender)
        for made in (manifest.hop_keys, manifest.aggregator_keys)
    )
    lent = replace(manifest, hop_keys=keys, aggregator_keys=own)
    who = stage.member(outsider)
    body = make_body(who.identity, lent, stage.federation, nought())
    header = replace(body.header, manifest=manifest.digest).signed(who.identity)
    hop.bodies[manifest.digest][outsider] = replace(body, header=header)
    passed = hop.passed(manifest, [*manifest.invited, outsider])
    accepted = await _relayed(stage, passed)
    node = stage.hop(SECOND)
    known = node.core.attempt is not None and header.digest in node.core.attempt.headers
    return stage.loot(accepted or known, "a silo in the cohort that was not drawn", counted=int(accepted))


@attack("smallest-cohort", Rule.R4, "aggregator", Outcome.CONCEDED, AGGREGATOR)
async def smallest_cohort(stage: Stage) -> Loot:
    """The aggregator announces to the victim and to as few others as the policy allows."""
    least = stage.federation.minimum_cohort
    silos = (VICTIM, *_others(stage)[: least - 1])
    manifest = await stage.whole_round(silos=silos)
    found = stage.aggregator.sum(manifest) / least
    close = stage.closeness(found, manifest)
    gained = set(stage.came(manifest).silos) == set(silos)
    return stage.loot(gained, "a sum over as few as the policy allows, of its choice", cohort=least, **close.figures)


@attack("group-of-its-choice", Rule.R4, WITH_HOP, Outcome.CONCEDED, GROUPED)
async def group_of_its_choice(stage: Stage) -> Loot:
    """Where sums leave by group, hop 1 deals the groups: the victim hides among those whom it is put with."""
    manifest, groups = await stage.begin(), (0, 0, 0, 1, 1, 1)
    read = await _passed(stage, manifest, stage.honest_silos, groups)
    if not read:
        return stage.loot(False, "nothing left shuffler-2")
    found = stage.aggregator.group_sums(manifest)[0] / groups.count(0)
    close = stage.closeness(found, manifest)
    return stage.loot(read, "a sum over one group, of its choice", group=groups.count(0), **close.figures)


@attack("not-announced", Rule.R4, "aggregator", Outcome.CONCEDED, AGGREGATOR)
async def not_announced(stage: Stage) -> Loot:
    """One silo hears of no round: its record names who came, so that the silo sees it afterwards and says so."""
    before = len(stage.witness.lines)
    manifest = await stage.whole_round(silos=_others(stage))
    left_out = VICTIM not in stage.came(manifest).silos
    said = await stage.within(SAYS_S, lambda: _says(stage, before, "never told"))
    close = stage.closeness(stage.aggregator.sum(manifest) / len(stage.came(manifest).silos), manifest)
    what = "a sum without the victim, which says so" if said else "a sum without the victim, and nobody says so"
    return stage.conceded(left_out, what, beyond=not said, told=said, **close.figures)


@attack("cohort-of-friends", Rule.R4, "aggregator and two silos", Outcome.CONCEDED, FRIENDS)
async def cohort_of_friends(stage: Stage) -> Loot:
    """The aggregator announces to the victim and to colluding silos alone, who take their own updates off the sum."""
    friends = [stage.member(name) for name in stage.cast.silos]
    manifest = await stage.begin(silos=(VICTIM,))
    for friend in friends:
        body = make_body(friend.identity, manifest, stage.federation, nought())
        await friend.stream(FIRST, "Submit", body_frames(body, friend.identity, manifest))
    await stage.counted((VICTIM, *stage.cast.silos))
    stage.pass_time(FIRST)
    await stage.until(lambda: stage.came(manifest).whole, "the sum")
    await stage.aggregator.release(manifest)
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    return stage.loot(close.read, "the victim's update", cohort=len(stage.came(manifest).silos), **close.figures)


@attack("left-out-with-a-receipt", Rule.R4, "shuffler-1", Outcome.CONCEDED, WITH_FIRST)
async def left_out_with_a_receipt(stage: Stage) -> Loot:
    """Hop 1 signs for the victim's body and leaves it out: the round's record shows the victim that it was left out."""
    before = len(stage.witness.lines)
    manifest, silo = await stage.begin(), stage.silo(VICTIM)
    await stage.submitted(manifest, FIRST)
    await stage.until(lambda: silo.core.state is State.COUNTED, "the victim has its receipt")
    left_out = await _passed(stage, manifest, _others(stage))
    await stage.settle()
    said = await stage.within(SAYS_S, lambda: _says(stage, before, "gave a receipt"))
    close = stage.closeness(stage.aggregator.sum(manifest) / len(stage.came(manifest).silos), manifest)
    what = "a sum without the victim, which names shuffler-1" if said else "a sum without a silo that feels counted"
    return stage.conceded(left_out, what, beyond=not said, told=said, **close.figures)


@attack("bound-on-a-bare-word", Rule.R4, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def bound_on_a_bare_word(stage: Stage) -> Loot:
    """The aggregator says that the model was signed for without the victim, and signs for everybody itself."""
    others, chain, us = _others(stage), stage.federation.chain, stage.aggregator
    nothing = bytes(DIGEST_BYTES)
    cohort = Cohort(nothing, tuple(Participant(name, nothing) for name in others))
    ready = Ready(nothing, us.model, tuple(Trail(h, cohort.digest, b"", nothing, nothing, nothing) for h in chain))
    signatures = tuple((name, us.identity.sign(ready.digest)) for name in (*chain, us.name))
    manifest = await stage.begin(bound=Bond.of(cohort, ready, signatures))
    await stage.until(lambda: stage.came(manifest).whole, "the sum")
    await stage.aggregator.release(manifest)
    left_out = stage.came(manifest).silos == others
    close = stage.closeness(stage.aggregator.sum(manifest) / len(others), manifest)
    return stage.loot(left_out, "a sum without the victim, whom hop 1 refuses", cohort=len(others), **close.figures)


async def _bound_by_record(stage: Stage, told: Attempted) -> Loot:
    """Give the round up with a record that says this of an attempt, and see whether it counts."""
    us, least = stage.aggregator, stage.federation.chain_rule.minimum
    record = us.chronicle.draft(Ended.ABANDONED, (us.model, us.chronicle.head.state_after), attempts=(told,))
    stored = len(await us.stored(record))
    bound = VICTIM not in stage.hop(FIRST).core.log.released(us.model) != ()
    return stage.loot(bound and stored >= least, "a model that is bound to others than the victim", stored=stored)


@attack("bound-in-the-record", Rule.R4, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def bound_in_the_record(stage: Stage) -> Loot:
    """A round is given up, and its record says that the model was released without the victim, over no hops at all."""
    await stage.begin(silos=())
    us, said = stage.aggregator, bytes(DIGEST_BYTES)
    alone = ((us.name, us.identity.sign(said)),)
    return await _bound_by_record(stage, Attempted(1, said, (), said, _others(stage), alone))


@attack("other-silos-in-the-record", Rule.R4, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def other_silos_in_the_record(stage: Stage) -> Loot:
    """A round is given up when all have signed for all silos, and its record has other silos beside the signatures."""
    us, manifest = stage.aggregator, await stage.padded_round()
    ready = us.ready(manifest)
    signatures = await us.agreed(manifest, ready)
    told = Attempted(manifest.attempt, manifest.digest, manifest.chain, ready.digest, _others(stage), signatures)
    return await _bound_by_record(stage, told)


def _says(stage: Stage, since: int, what: str) -> bool:
    """Whether the victim has warned of something."""
    return any(who == VICTIM and what in line for who, line in stage.witness.lines[since:])
