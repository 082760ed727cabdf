"""Differential privacy, and what it buys: noise in the sum for whole silos, or DP-SGD for single records.

Noise in the sum hides whether a silo took part at all; every silo adds its share before the masks, and nobody sees a
sum with less. With few silos and many parameters it costs much accuracy. DP-SGD protects each record of a silo,
whatever leaves the silo afterwards, and both go together with masks.
"""

from dataclasses import replace

from dirichlet_split import task as example

import silomix
from silomix.runtime.core.learning.noise_account import multiplier_for, spent

SILOS, ROUNDS, DELTA = 10, 3, 1e-5
PARAMETERS = example().schema().parameters


def policy_for(epsilon):
    """Return the policy whose ROUNDS rounds spend epsilon for each silo."""
    policy = silomix.Policy(clip_norm=1.0, precision=3, rounds=ROUNDS, minimum_cohort=SILOS)
    noise = multiplier_for(policy, PARAMETERS, epsilon, DELTA, least=SILOS)
    return replace(policy, noise_multiplier=noise)


def record_private(silo=-1, silos=SILOS, epsilon=5.0):
    """The same task with DP-SGD: each record is worth epsilon at most, over all rounds."""
    base = example(silo, silos, alpha=10.0)
    return silomix.TorchTask(
        base.net, base.share, base.test, silo=silo, batch=16, lr=0.2, dp_epsilon=epsilon, dp_rounds=ROUNDS
    )


if __name__ == "__main__":
    for epsilon in (5.0, 50.0):
        policy = policy_for(epsilon)
        bought = spent(policy, PARAMETERS, ROUNDS, DELTA, least=SILOS)
        print(f"silos: epsilon {bought:.2f} takes noise of {policy.noise_multiplier:.2f} times the largest update")
    done = silomix.run(example, silos=SILOS, rounds=ROUNDS, policy=policy, options={"alpha": 10.0})
    print(f"silos: epsilon {bought:.2f}, delta {DELTA}: accuracy {done.accuracy:.2f}")
    done = silomix.run(record_private, silos=SILOS, rounds=ROUNDS)
    print(f"records: epsilon 5.00, delta {DELTA}: accuracy {done.accuracy:.2f}")
