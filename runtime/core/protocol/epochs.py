"""Epochs: a federation that changes goes on as the next of its numbered files, between two rounds.

An epoch names the first one and the one before it. The first counts when every owner has signed it, a later one when
`owners_quorum` owners of the one before have, and at a node when that node's own owner is among those who agree. Which
epoch a round belongs to, the round log says: the record of a round that was applied may name the next round's. So a
model is never between two pools of hops, and records stay readable, each under the epoch in which it was made.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import SHOWN, Federation, Member
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.owners import epoch_digest, not_accepted

Accepted = Mapping[str, bytes]
"""Owners' signatures under an epoch, by name."""

FIXED = ("schema", "parameters", "initial_model", "granularity", "server")
"""Keys of the policy that stay: models, and the server's state, could not be followed from one epoch to the next."""


@dataclass(frozen=True)
class Epochs:
    """The epochs that count at a node, in order and without a gap; the newest may not have begun."""

    chain: tuple[Federation, ...]

    @property
    def first(self) -> bytes:
        """Digest of the first epoch."""
        return self.chain[0].first

    def find(self, digest: bytes) -> Federation | None:
        """An epoch by its digest, if it counts here."""
        return next((epoch for epoch in self.chain if epoch.digest == digest), None)

    def get(self, digest: bytes, what: str) -> Federation:
        """An epoch by its digest; whatever belongs to one that does not count here is refused."""
        found = self.find(digest)
        if found is None:
            newest = self.chain[-1]
            raise PeerFault(
                Reason.WRONG_FEDERATION,
                f"{what} belongs to the federation file {digest.hex()[:SHOWN]}, which does not count here: the newest "
                f"that does is epoch {newest.epoch}, {newest.digest.hex()[:SHOWN]}; compare with `silomix digest`",
                found=digest.hex()[:SHOWN],
                expected=newest.digest.hex()[:SHOWN],
            )
        return found

    def after(self, digest: bytes) -> Federation | None:
        """The successor of an epoch, if there is one that counts here."""
        return next((epoch for epoch in self.chain if epoch.predecessor == digest), None)

    def check_next(self, digest: bytes, following: bytes) -> None:
        """Check that one epoch follows another, as far as this node knows: it goes into none that does not count."""
        known = self.after(digest)
        if known is None or known.digest != following:
            ours = f"epoch {known.epoch}, {known.digest.hex()[:SHOWN]}" if known else "none"
            raise PeerFault(
                Reason.WRONG_EPOCH,
                f"the federation is to go on with the file {following.hex()[:SHOWN]}, and what counts here as the "
                f"next is {ours}: `silomix digest` says who has accepted what",
                found=following.hex()[:SHOWN],
            )

    def extended(self, federation: Federation) -> "Epochs":
        """Return these with one more, which was checked."""
        return Epochs((*self.chain, federation))


def change_problem(new: Federation, old: Federation) -> str:
    """Say why a file cannot follow another, whoever has signed it, or nothing. It goes on from "the file"."""
    if (new.epoch, new.genesis, new.predecessor) != (old.epoch + 1, old.first, old.digest):
        return f"does not say that it follows epoch {old.epoch}, {old.digest.hex()[:SHOWN]}"
    if new.name != old.name:
        return f"calls the federation {new.name}, and it is {old.name}"
    if (new.pinned, new.anchor) != (old.pinned, old.anchor):
        return "changes what certificates are trusted by; that takes a new federation"
    if (new.aggregator.name, new.aggregator.address) != (old.aggregator.name, old.aggregator.address):
        return "has another aggregator, or another address of it; that takes a new federation"
    for key in FIXED:
        if getattr(new.policy, key) != getattr(old.policy, key):
            return f"changes policy.{key}, which stays as long as the federation does"
    roles = [{m.name for m in members} for members in (old.shufflers, old.silos)]
    for members, others in ((new.silos, roles[0]), (new.shufflers, roles[1])):
        if both := sorted({m.name for m in members} & others):
            return f"gives {both[0]} another role; a node of another role has another name"
    return ""


def signers(new: Federation, old: Federation, accepted: Accepted) -> list[str]:
    """Name the owners of an epoch who have signed its successor."""
    what = epoch_digest(new)
    return [owner.name for owner in old.owners if _holds(owner.key, what, accepted.get(owner.name), owner.name)]


def _holds(key: bytes, what: bytes, signature: bytes | None, name: str) -> bool:
    if signature is None:
        return False
    try:
        verify(key, what, signature, name)
    except PeerFault:
        return False
    return True


def agrees(owner: str, new: Federation, old: Federation, accepted: Accepted) -> bool:
    """Whether an owner has signed an epoch, with the key that it had or with the one that it has there."""
    what, keys = epoch_digest(new), [o.key for o in (*old.owners, *new.owners) if o.name == owner]
    return any(_holds(key, what, accepted.get(owner), owner) for key in keys)


def owner_of(node: str, new: Federation, old: Federation) -> str:
    """Who has to agree before a node goes along: whoever has it now, and not whom a later file gives it to."""
    return (old if node in old.members else new).member(node).owner


def consents(node: str, new: Federation, old: Federation, accepted: Accepted) -> bool:
    """Whether a node's owner has signed an epoch: with the key that it had, unless it is new itself."""
    owner = owner_of(node, new, old)
    keys = [o.key for o in old.owners if o.name == owner] or [o.key for o in new.owners if o.name == owner]
    return any(_holds(key, epoch_digest(new), accepted.get(owner), owner) for key in keys)


def check_first(first: Federation, accepted: Accepted) -> None:
    """Check that every owner has signed a federation's first epoch."""
    missing, wrong = not_accepted(first, accepted)
    if first.epoch != 1 or first.predecessor or first.genesis or missing or wrong:
        raise PeerFault(
            Reason.WRONG_EPOCH,
            f"the first epoch needs the signature of every owner: {', '.join([*missing, *wrong]) or 'it is another'}",
        )


def check_successor(new: Federation, old: Federation, accepted: Accepted) -> None:
    """Check that an epoch follows another by the rule of that one: as many of its owners as it says have signed."""
    if problem := change_problem(new, old):
        raise PeerFault(Reason.WRONG_EPOCH, f"the file of epoch {new.epoch}, {new.digest.hex()[:SHOWN]}, {problem}")
    found = signers(new, old, accepted)
    if len(found) < old.quorum:
        raise PeerFault(
            Reason.WRONG_EPOCH,
            f"epoch {new.epoch}, {new.digest.hex()[:SHOWN]}, is signed by {', '.join(found) or 'nobody'}: it takes "
            f"{old.quorum} of the {len(old.owners)} owners of epoch {old.epoch}",
            found=len(found),
            expected=old.quorum,
        )


def may_begin(
    new: Federation, old: Federation, ready: AbstractSet[str], listening: Iterable[str], *, patient: bool
) -> bool:
    """Whether an epoch can begin with those at whom it counts: all who stay, and without patience as many as it takes.

    The record that names it has to be stored by as many hops of the old pool as every record. Whoever is left behind is
    away, as if it were down, until its owner has accepted: so one owner can put an epoch off for a day, and no longer.
    """
    if sum(hop in ready for hop in old.chain) < old.chain_rule.minimum:
        return False
    present = set(listening)
    hops = {hop for hop in new.chain if hop in ready or hop not in old.members}
    silos = {name for name in new.silo_names if name in present & ready or name not in old.members}
    waiting = (set(new.chain) - hops) | (present & set(new.silo_names) - ready)
    if waiting and patient:
        return False
    return len(hops) >= new.chain_rule.minimum and (not waiting or len(silos) >= new.minimum_cohort)


def differences(new: Federation, old: Federation) -> list[str]:
    """Say for people what one epoch changes, line by line."""
    lines = [
        *_changed("owner", {o.name: {"key": o.key} for o in old.owners}, {o.name: {"key": o.key} for o in new.owners}),
        *_changed("aggregator", _listed([old.aggregator]), _listed([new.aggregator])),
        *_changed("shuffler", _listed(old.shufflers), _listed(new.shufflers)),
        *_changed("silo", _listed(old.silos), _listed(new.silos)),
    ]
    stay = [name for name in old.chain if name in new.chain]
    if stay != [name for name in new.chain if name in old.chain]:
        lines.append(f"the order of the pool: {', '.join(old.chain)} -> {', '.join(new.chain)}")
    for key, before in vars(old.policy).items():
        after = getattr(new.policy, key)
        if before != after:
            lines.append(f"policy.{key}: {before} -> {after}")
    if new.quorum != old.quorum:
        lines.append(f"owners who have to sign the next epoch: {old.quorum} -> {new.quorum}")
    return lines


def _listed(members: "list[Member] | tuple[Member, ...]") -> dict[str, dict[str, object]]:
    return {m.name: {"key": m.key, "address": m.address, "owner": m.owner} for m in members}


def _changed(what: str, old: Mapping[str, Mapping[str, object]], new: Mapping[str, Mapping[str, object]]) -> list[str]:
    lines = [f"{what} {name} is REMOVED" for name in old if name not in new]
    lines += [f"{what} {name} is NEW" for name in new if name not in old]
    for name in old:
        for key, before in old[name].items():
            after = new.get(name, old[name])[key]
            if before != after:
                shown = "another key" if key == "key" else f"{before} -> {after}"
                lines.append(f"{what} {name}: {'' if key == 'key' else f'{key} '}{shown}")
    return lines
