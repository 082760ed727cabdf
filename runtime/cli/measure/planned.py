"""What `silomix plan` computes: the federation that a policy would make, what it sends, and what a round is like."""

import argparse
from dataclasses import asdict, replace

from silomix.runtime.cli.policy_options import policy_of, wrong
from silomix.runtime.core.learning.noise_account import spent
from silomix.runtime.core.numbers import costs
from silomix.runtime.core.numbers.check_costs import check_cost, trap_cost
from silomix.runtime.core.numbers.costs import DEFAULT_CHAIN, Model, PlanReport
from silomix.runtime.core.numbers.plan import Encoding, Level, largest_value, plan
from silomix.runtime.core.policy import LEAST_COHORT, TrapPlacement
from silomix.runtime.core.protocol.federation import Federation, Member

DELTA = 1e-5
"""At which the epsilon of noise in the sums is told."""

MOST_MEMBERS = 100_000
"""Far more than a federation may have, and few enough to be held in memory."""


def asked(args: argparse.Namespace) -> Federation:
    """Make up a federation under the policy that was given, or say which option is wrong."""
    policy, silos = policy_of(args), 10 if args.silos is None else args.silos
    hops = DEFAULT_CHAIN.pool if args.shufflers is None else args.shufflers
    for name, found in (("silos", silos), ("shufflers", hops)):
        if found > MOST_MEMBERS:
            raise wrong(name, f"found {found}; a plan is computed for {MOST_MEMBERS:,} at most")
    federation = Federation(
        "planned",
        Member("aggregator", b""),
        tuple(Member(f"shuffler-{i}", b"") for i in range(hops)),
        tuple(Member(f"silo-{i}", b"") for i in range(silos)),
        policy,
    )
    conflict = federation.conflict() if silos >= LEAST_COHORT else None  # of fewer, a plan can be computed, no more
    if conflict and conflict[0] not in ("precision", "minimum_hops"):  # these two the report says in its own words
        raise wrong(*conflict)
    return federation


def report(federation: Federation, model: Model) -> PlanReport:
    """Compute what the federation's policy costs for a model, and what a round is like."""
    policy, silos, rule = federation.policy, len(federation.silos), federation.chain_rule
    largest = silos * policy.weight_levels * largest_value(min(policy.precision, 100), policy.quantiser)
    headroom = policy.headroom + federation.noise.headroom(silos, largest)
    made = costs.report(
        silos, policy.precision, policy.level, policy.weight_levels, headroom, policy.quantiser, model, rule
    )
    if own := headroom - policy.headroom:
        made = replace(made, notes=(*made.notes, f"{own} of the {headroom} bits of headroom are for the noise."))
    if policy.level is Level.MALICIOUS:
        chosen = plan(
            silos, policy.precision, Encoding.COUNTS, policy.level, policy.weight_levels, headroom, policy.quantiser
        )
        made = replace(made, check=asdict(check_cost(chosen, rule.pool)))
        if policy.traps:
            among = model.parameters if policy.trap_placement is TrapPlacement.RANDOM else None
            made = replace(made, traps=asdict(trap_cost(chosen, silos, rule.pool, among, policy.traps)))
    return replace(made, round=_round(federation, model)) if silos >= LEAST_COHORT else made


def _round(federation: Federation, model: Model) -> dict[str, int | float]:
    """What a round is like under a policy: whom it invites, how many it needs, how long it may take."""
    policy = federation.policy
    invited = max(federation.minimum_cohort, round(len(federation.silos) * policy.subsample))
    found: dict[str, int | float] = {
        "rounds": policy.rounds,
        "invited": invited,
        "minimum_cohort": federation.minimum_cohort,
        "groups": max(1, invited // policy.group_size) if policy.group_size else 1,
        "longest_s": policy.attempts * (policy.deadline_s + policy.release_s),
    }
    if policy.early_close:
        found["early_close"] = policy.early_close
    if policy.noise_multiplier:
        spent_ = spent(policy, model.parameters, policy.rounds, DELTA, federation.contributors)
        found |= {"epsilon": spent_, "delta": DELTA}
    return found
