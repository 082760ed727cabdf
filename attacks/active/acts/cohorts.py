"""R3 and the cohort: two sums that differ by one silo give it away, and so does a sum over one."""

from dataclasses import replace

from silomix.attacks.active.acts.casts import AGGREGATOR, WITH_FIRST
from silomix.attacks.active.liars.bodies import Passed, body_frames, make_body
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.registry import Cast, Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, SECOND, VICTIM, Stage
from silomix.attacks.active.task import nought
from silomix.runtime.core.protocol.messages import Grouping
from silomix.runtime.core.protocol.silo import State

WITH_HOP = "aggregator and shuffler-1"
SAMPLED = Cast(hops=(FIRST,), policy=(("subsample", 0.7),))
FRIENDS = Cast(silos=("silo-05", "silo-06"))
GROUPED = Cast(hops=(FIRST,), policy=(("group_size", 3),))


def _others(stage: Stage) -> tuple[str, ...]:
    return tuple(name for name in stage.honest_silos if name != VICTIM)


@attack("second-cohort", Rule.R3, WITH_HOP, Outcome.REFUSED, WITH_FIRST)
async def second_cohort(stage: Stage) -> Loot:
    """A round is tried again, with one silo left out: the difference of two sums would be its update."""
    us, hop, number = stage.aggregator, stage.liar(FIRST), stage.next_round()
    sums = []
    for attempt, silos in ((1, stage.honest_silos), (2, _others(stage))):
        manifest = await stage.begin(number, attempt=attempt)
        await stage.submitted(manifest, FIRST)
        try:
            await hop.stream(SECOND, "Relay", hop.passed(manifest, silos).frames())
        except Refused:
            continue
        sums.append(us.sum(manifest))
    if len(sums) < 2:
        return stage.loot(False, "one sum, over all silos", sums=len(sums))
    close = stage.closeness(sums[0] - sums[1], manifest)
    return stage.loot(close.read, "the difference of two sums", sums=2, **close.figures)


@attack("regrouping", Rule.R3, WITH_HOP, Outcome.REFUSED, GROUPED)
async def regrouping(stage: Stage) -> Loot:
    """A round is tried again with the groups dealt otherwise: sums that differ by two silos' exchange."""
    hop, node, number = stage.liar(FIRST), stage.hop(SECOND), stage.next_round()
    released = 0
    for attempt, groups in ((1, (0, 0, 0, 1, 1, 1)), (2, (0, 0, 1, 0, 1, 1))):
        manifest = await stage.begin(number, attempt=attempt)
        await stage.submitted(manifest, FIRST)
        passed = hop.passed(manifest, stage.honest_silos)
        signature = hop.identity.sign(Grouping(groups).digest(passed.cohort.digest))
        dealt = replace(passed, grouping=Grouping(groups, signature), chunks=(), whole=False)
        try:
            await hop.stream(SECOND, "Relay", dealt.frames())
        except Refused as refused:
            if refused.refusal.reason not in ("wrong_sequence", "internal"):  # the stream ends early: that is all
                continue
        released += node.core.attempt is not None and bool(node.core.attempt.cohort)
    return stage.loot_for("already_released", released > 1, "groupings released for", groupings=released)


@attack("same-model-twice", Rule.R3, "aggregator", Outcome.OPEN, AGGREGATOR, closed_by="R3, R4, R5")
async def same_model_twice(stage: Stage) -> Loot:
    """One model is offered in two rounds, and one silo is left out of the second."""
    us, model = stage.aggregator, stage.aggregator.start
    first = await stage.whole_round(model=model)
    second = await stage.whole_round(model=model, silos=_others(stage))
    close = stage.closeness(us.sum(first) - us.sum(second), first)
    return stage.loot(close.read, "the difference of two sums on one model", **close.figures)


@attack("successive-models", Rule.R3, "aggregator", Outcome.CONCEDED, AGGREGATOR)
async def successive_models(stage: Stage) -> Loot:
    """One silo is kept out of the next round by being slow to it: two sums on successive models are compared."""
    us = stage.aggregator
    first = await stage.whole_round(model=us.start)
    mean = us.sum(first) / len(stage.came(first).silos)
    second = await stage.whole_round(model=us.moved(first.model, mean), silos=_others(stage))
    close = stage.closeness(us.sum(first) - us.sum(second), first)
    return stage.loot(close.read, "the difference of two sums on successive models", **close.figures)


# The cohort: each hop counts for itself


async def _relayed(stage: Stage, passed: Passed) -> bool:
    """Pass something on to shuffler-2, and say whether it has vouched for it."""
    try:
        await stage.liar(FIRST).stream(SECOND, "Relay", passed.frames())
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
    hop, number = stage.liar(FIRST), stage.next_round()
    while not set(stage.honest_silos) - set(stage.aggregator.invited(number)):
        number = stage.next_round()
    outsider = min(set(stage.honest_silos) - set(stage.aggregator.invited(number)))
    manifest = await stage.begin(number)
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


@attack("not-announced", Rule.R4, "aggregator", Outcome.CONCEDED, AGGREGATOR)
async def not_announced(stage: Stage) -> Loot:
    """One silo hears of no round: nobody notices today, as who was invited and came is in no log yet."""
    manifest = await stage.whole_round(silos=_others(stage))
    left_out = VICTIM not in stage.came(manifest).silos and not stage.refusals()
    close = stage.closeness(stage.aggregator.sum(manifest) / len(stage.came(manifest).silos), manifest)
    return stage.loot(left_out, "a sum without the victim, and nobody says so", **close.figures)


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
    close = stage.closeness(stage.aggregator.sum(manifest), manifest)
    return stage.loot(close.read, "the victim's update", cohort=len(stage.came(manifest).silos), **close.figures)


@attack("left-out-with-a-receipt", Rule.R4, "shuffler-1", Outcome.OPEN, WITH_FIRST, closed_by="R2")
async def left_out_with_a_receipt(stage: Stage) -> Loot:
    """Hop 1 signs for the victim's body and leaves it out: the victim is not told who was in the sum."""
    manifest, hop, silo = await stage.begin(), stage.liar(FIRST), stage.silo(VICTIM)
    await stage.submitted(manifest, FIRST)
    await stage.until(lambda: silo.core.state is State.COUNTED, "the victim has its receipt")
    await hop.stream(SECOND, "Relay", hop.passed(manifest, _others(stage)).frames())
    left_out = VICTIM not in stage.came(manifest).silos and stage.came(manifest).whole
    return stage.loot(left_out, "a sum without a silo that takes itself for counted")
