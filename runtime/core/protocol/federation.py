"""The federation as every node pins it: who takes part, with which keys, under which policy.

Nothing in it is ever learned from the aggregator. Its digest is in every manifest, so two nodes with different files
never take part in the same round.
"""

from dataclasses import dataclass
from functools import cached_property

from silomix.runtime.core.chain import ChainRule
from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import LocalFault, PeerFault, Reason
from silomix.runtime.core.learning.noise import Noise
from silomix.runtime.core.numbers.fold import rhos
from silomix.runtime.core.numbers.plan import Granularity, Level, Plan, largest_value, plan
from silomix.runtime.core.policy import Policy, Server

SHOWN = 16
"""Hex digits of a federation's digest that errors and people use: enough to tell any two files apart."""


@dataclass(frozen=True)
class Owner:
    """Whoever answers for some of the nodes: a name, and the Ed25519 key that agrees to a federation file."""

    name: str
    key: bytes


@dataclass(frozen=True)
class Member:
    """A node on the roster: its name (also the name in its certificate), where it listens, and its Ed25519 key."""

    name: str
    key: bytes
    address: str = ""
    """host:port; empty for a silo, which only dials out."""
    owner: str = ""
    """Whose it is, by name. Empty only in federations that were never written to a file, such as a simulation's."""


@dataclass(frozen=True)
class Federation:
    """One federation file, parsed and checked. runtime/config/load.py reads it."""

    name: str
    aggregator: Member
    shufflers: tuple[Member, ...]
    """The pool of hops, in the order in which a chain passes them."""
    silos: tuple[Member, ...]
    policy: Policy
    anchor: bytes = b""
    """Certificates of the CAs that vouch for nodes, PEM; empty without TLS, and where nodes' own are pinned."""
    pinned: bool = False
    """Whether nodes know each other by self-signed certificates, each pinned by its node's identity."""
    owners: tuple[Owner, ...] = ()
    """Who has to agree to this file."""
    epoch: int = 1
    """The number of this file among those of the federation. The first is the genesis: every owner signs it."""
    genesis: bytes = b""
    """Digest of the first epoch; empty in the first itself."""
    predecessor: bytes = b""
    """Digest of the epoch before this one; empty in the first."""
    owners_quorum: int = 0
    """Owners of this epoch who have to sign the next one; 0 for a majority."""

    @cached_property
    def digest(self) -> bytes:
        """What every manifest carries, and every node compares with its own."""
        everybody = (self.aggregator, *self.shufflers, *self.silos)
        parts: list[str | bytes | int] = [self.name, self.anchor, self.policy.canonical()]
        for member in everybody:
            parts += [member.name, member.key, member.address]
        parts += [len(self.shufflers), len(self.silos)]
        if self.owners:
            parts += [self.epoch, int(self.pinned)]
            for owner in self.owners:
                parts += [owner.name, owner.key]
            parts += [*(member.owner for member in everybody), len(self.owners)]
            if self.owners_quorum or self.predecessor:
                parts += [self.owners_quorum, self.genesis, self.predecessor]
        return digest("federation", *parts)

    @property
    def first(self) -> bytes:
        """Digest of the first epoch."""
        return self.genesis or self.digest

    @property
    def quorum(self) -> int:
        """Owners of this epoch who have to sign the next one. Of two such sets, one owner is in both."""
        return self.owners_quorum or len(self.owners) // 2 + 1

    @property
    def secure(self) -> bool:
        """Whether its nodes speak TLS."""
        return self.pinned or bool(self.anchor)

    def check_same(self, found: bytes, whose: str) -> None:
        """Refuse a peer that has another federation file, and say which both are: `silomix digest` shows one's own."""
        if found != self.digest:
            theirs, ours = found.hex()[:SHOWN], self.digest.hex()[:SHOWN]
            raise PeerFault(
                Reason.WRONG_FEDERATION,
                f"{whose} has the federation file {theirs or 'of no digest'}, and this node has {ours}: compare both "
                "with `silomix digest`",
                peer=whose,
                found=theirs,
                expected=ours,
            )

    @cached_property
    def plan(self) -> Plan:
        """The numbers that follow from the policy: every node computes them itself."""
        p, silos = self.policy, len(self.silos)
        largest = silos * p.weight_levels * largest_value(min(p.precision, 100), p.quantiser)
        headroom = p.headroom + self.noise.headroom(silos, largest)
        return plan(silos, p.precision, p.encoding, p.level, p.weight_levels, headroom, p.quantiser)

    def conflict(self) -> tuple[str, str] | None:
        """Return a key of the policy and the trouble with it, if the keys do not go together, or not with the roster.

        What one key alone may be, its kind says.
        """
        policy, silos = self.policy, len(self.silos)
        if problem := self.chain_rule.problem:
            return "minimum_hops", f"found {policy.minimum_hops}: {problem}; give 0 for the whole pool"
        if policy.level is Level.MALICIOUS and (policy.group_size or policy.granularity is not Granularity.SUM):
            return "level", (
                'found "malicious" with groups or a granularity other than "sum": the tamper check is about one sum of '
                'the whole cohort; give group_size = 0 and granularity = "sum", or level = "semi-honest"'
            )
        if policy.minimum_cohort > silos:
            return "minimum_cohort", f"found {policy.minimum_cohort}; give at most {silos}, the number of [[silos]]"
        invited, least = round(policy.subsample * silos, 9), self.minimum_cohort
        if invited < least:
            return "subsample", (
                f"found {policy.subsample}, which invites {invited:g} of {silos} silos; give at least "
                f"{least / silos:g}, so that policy.minimum_cohort = {least} can be met"
            )
        if policy.group_size > invited:
            return "group_size", f"found {policy.group_size}; a round invites {invited:g} silos, give no more"
        if policy.server is Server.MEDIAN and policy.group_size and invited < 2 * policy.group_size:
            return "server", (
                f'found "median" of one group: {invited:g} silos with policy.group_size = {policy.group_size} make no '
                "two; give a smaller group_size, or another rule"
            )
        if conflict := policy.conflict():
            return conflict
        try:
            _ = self.plan
        except LocalFault as fault:
            return "precision", (
                f"no plan holds with policy.precision = {policy.precision}, policy.weight_levels = "
                f"{policy.weight_levels}, policy.headroom = {policy.headroom} and {silos} silos: {fault.message} "
                "(r is policy.precision, n_max the number of silos)"
            )
        least = max(rhos(self.plan)) if policy.level is Level.MALICIOUS else 1
        if policy.chunk_parameters < least:
            return "chunk_parameters", f"found {policy.chunk_parameters}; level malicious needs {least} or more"
        return None

    @cached_property
    def minimum_cohort(self) -> int:
        """Silos that a sum holds at least."""
        return self.policy.cohort_of(len(self.silos))

    @cached_property
    def contributors(self) -> int:
        """Silos whose noise a released sum holds at least."""
        return self.policy.contributors(len(self.silos))

    @cached_property
    def noise(self) -> Noise:
        """What each silo adds to its integers."""
        return Noise.under(self.policy, self.contributors)

    @cached_property
    def chain(self) -> tuple[str, ...]:
        """The hops that bodies pass: the whole pool."""
        return tuple(s.name for s in self.shufflers)

    @cached_property
    def chain_rule(self) -> ChainRule:
        """How many hops a chain must have, and what that holds against."""
        return ChainRule(len(self.shufflers), self.policy.minimum_hops or len(self.shufflers))

    @cached_property
    def members(self) -> dict[str, Member]:
        """Everybody by name."""
        return {m.name: m for m in (self.aggregator, *self.shufflers, *self.silos)}

    def owned_by(self, owner: str) -> tuple[str, ...]:
        """Name the nodes of an owner."""
        return tuple(name for name, member in self.members.items() if member.owner == owner)

    def member(self, name: str) -> Member:
        """Look somebody up, or refuse them."""
        try:
            return self.members[name]
        except KeyError:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{name!r} is not in the federation file", peer=name) from None

    @property
    def drawn(self) -> int:
        """How many silos are invited to a round."""
        return min(len(self.silos), max(self.minimum_cohort, round(len(self.silos) * self.policy.subsample)))

    def draw(self, round_: int, model: bytes) -> tuple[str, ...]:
        """Draw the silos of a round on a model, in the order of their names.

        Everybody computes the draw, so the aggregator cannot simply name whom it wants. It is the same in every attempt
        at a round, so that a cohort that was released can be formed again. It depends on the model: whoever wrote the
        federation file could try many, and see all draws to come.
        """
        names = self.silo_names
        if self.drawn == len(names):
            return names
        order = sorted(names, key=lambda name: digest("subsample", self.digest, round_, model, name))
        return tuple(sorted(order[: self.drawn]))

    @cached_property
    def silo_names(self) -> tuple[str, ...]:
        """The silos in the order of their names, as messages list them."""
        return tuple(sorted(s.name for s in self.silos))
