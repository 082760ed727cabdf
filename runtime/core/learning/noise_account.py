"""What the noise in a federation's sums promises: zero-concentrated differential privacy, and the epsilon of it.

Neighbours are two federations that differ in all that one silo sends, which is replaced by zeros: the promise is to the
silo as a whole, whatever its records. The sum of the silos' discrete Gaussians is not itself one, and the difference is
accounted for (Kairouz, Liu and Steinke 2021, proposition 14); zCDP adds up over rounds, and becomes an epsilon at a
delta (Canonne, Kamath and Steinke 2020, proposition 12). Silos that are drawn at random are not counted in favour: the
draw is public.
"""

from dataclasses import replace
from math import exp, inf, isfinite, log, log1p, pi, sqrt

from silomix.runtime.core.learning.noise import Noise
from silomix.runtime.core.numbers.plan import largest_value
from silomix.runtime.core.policy import Policy


def rho(policy: Policy, parameters: int, least: int, contributors: int | None = None) -> float:
    """Return the zCDP of one round's sum, if so many silos add their noise: the least number unless given.

    `least` is the number that the noise was chosen for: `Federation.contributors`.
    """
    noise = Noise.under(policy, least)
    if not noise.variance:
        return inf
    n = least if contributors is None else contributors
    v = largest_value(policy.precision, policy.quantiser)
    sensitivity = policy.clip_norm * v / policy.bound
    tau = 10 * sum(exp(-2 * pi**2 * noise.variance * k / (k + 1)) for k in range(1, n))
    return (sensitivity / sqrt(n * noise.variance) + tau * sqrt(parameters)) ** 2 / 2


def epsilon(rho_: float, delta: float) -> float:
    """Return the least epsilon at which rho-zCDP is (epsilon, delta) differential privacy."""
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: give a number between 0 and 1")
    if not isfinite(rho_):
        return inf
    if rho_ == 0:
        return 0.0

    def at(order: float) -> float:  # of the Renyi divergence, above 1
        return rho_ * order + (log(1 / delta) - log(order)) / (order - 1) + log1p(-1 / order)

    # The order in logarithms: `at` falls and then rises, so the least value is where a search by thirds ends.
    low, high = log(1e-6), log(1e12)
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if at(1 + exp(a)) < at(1 + exp(b)):
            high = b
        else:
            low = a
    return max(0.0, at(1 + exp(low)))


def spent(
    policy: Policy, parameters: int, rounds: int, delta: float, least: int, contributors: int | None = None
) -> float:
    """Return the epsilon that so many rounds have spent of every silo that was in all of them."""
    return epsilon(rho(policy, parameters, least, contributors) * rounds, delta)


def multiplier_for(policy: Policy, parameters: int, target: float, delta: float, least: int) -> float:
    """Return the noise multiplier at which all rounds of a policy together spend at most the target epsilon."""
    low, high = 0.0, 1.0
    while epsilon(high, delta) < target:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, delta) < target else (low, middle)
    multiplier = sqrt(policy.rounds / (2 * low))  # as if the sum of the noises were a Gaussian
    while spent(replace(policy, noise_multiplier=multiplier), parameters, policy.rounds, delta, least) > target:
        multiplier *= 1.0001
    return multiplier
