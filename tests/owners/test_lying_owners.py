"""Owners and members who lie about epochs: whatever they offer a node, it stays where enough owners have put it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.owners.hospitals import Hospitals
from tests.owners.test_agreement import stranger
from tests.owners.test_succession import node

from silomix.runtime.config.load import identity_of, load_federation, load_node, require_agreement
from silomix.runtime.config.owners.epochs import Proposal, enter, own_place
from silomix.runtime.config.owners.owner import owner_identity
from silomix.runtime.config.owners.successor import newest, policy_after, succeed
from silomix.runtime.core.protocol.federation import Federation, Owner
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.owners import epoch_digest
from silomix.runtime.net.meeting import write_epoch
from silomix.runtime.nodes.node import Node


def owner(hospitals: Hospitals, name: str) -> Identity:
    return owner_identity(name, hospitals.home(name) / "owner.key")


def next_epoch(old: Federation, rounds: int) -> Federation:
    return succeed(old, [], policy=policy_after(old.policy, {"rounds": rounds}), file=Path("next"))


def signed(new: Federation, *owners: Identity) -> Proposal:
    return Proposal(new, {one.name: one.sign(epoch_digest(new)) for one in owners})


async def offered(at: Node, proposal: Proposal) -> None:
    """Let a member who is revoked tomorrow offer an epoch."""
    await at.succession._offered("silo-03", write_epoch(proposal))


def unmoved(at: Node) -> bool:
    """Whether nothing counts as the next epoch."""
    return at.succession.following is None and not at.succession.counts and at.succession.ready == b""


def other_keys(new: Federation, names: Mapping[str, Identity]) -> Federation:
    owners = tuple(Owner(o.name, names[o.name].public) if o.name in names else o for o in new.owners)
    return replace(new, owners=owners)


async def test_a_signature_counts_for_the_file_that_it_was_made_for(hospitals: Hospitals) -> None:
    """Not for another file of the same epoch, nor for the epoch after it with the same content."""
    old = load_federation(hospitals.home("hospital-a"))
    owners = [owner(hospitals, name) for name in ("hospital-a", "hospital-b")]
    agreed, other = next_epoch(old, 7), next_epoch(old, 8)
    async with node(hospitals, "silo-01") as at:
        await offered(at, Proposal(other, signed(agreed, *owners).accepted))
        assert unmoved(at)
        assert not at.succession._proposals
        assert not own_place(Proposal(other), at.config.state).exists(), "and nothing is written for it"
        await offered(at, signed(agreed, *owners))
        assert at.succession.ready == agreed.digest


@pytest.mark.parametrize(
    "lie",
    [
        lambda new, old: replace(new, genesis=bytes(32)),
        lambda new, old: replace(new, predecessor=bytes(32)),
        lambda new, old: replace(new, epoch=3),
        lambda new, old: replace(new, name="other"),
        lambda new, old: replace(new, aggregator=replace(new.aggregator, address="evil.example.org:7000")),
        lambda new, old: replace(new, policy=replace(new.policy, initial_model="00" * 32)),
        lambda new, old: replace(new, policy=replace(new.policy, granularity="none", level="trusted")),
    ],
)
async def test_not_even_all_owners_can_sign_what_cannot_follow(
    hospitals: Hospitals, lie: Callable[[Federation, Federation], Federation]
) -> None:
    old = load_federation(hospitals.home("hospital-a"))
    new = lie(next_epoch(old, 7), old)
    async with node(hospitals, "silo-01") as at:
        await offered(at, signed(new, *(owner(hospitals, o.name) for o in old.owners)))
        assert unmoved(at)
        assert not at.succession._proposals


async def test_nobody_signs_with_keys_that_the_new_file_brings_itself(hospitals: Hospitals) -> None:
    """One owner writes a file in which the others have keys of its own making, and signs for all three."""
    old = load_federation(hospitals.home("hospital-a"))
    fakes = {name: stranger(name) for name in ("hospital-a", "hospital-b")}
    new = other_keys(next_epoch(old, 7), fakes)
    async with node(hospitals, "silo-01") as at:
        await offered(at, signed(new, owner(hospitals, "hospital-c"), *fakes.values()))
        assert unmoved(at)

    # Two real owners are enough for the others; the one who was replaced is not taken along.
    fakes = {"hospital-a": stranger("hospital-a")}
    new = other_keys(next_epoch(old, 8), fakes)
    real = [owner(hospitals, name) for name in ("hospital-b", "hospital-c")]
    async with node(hospitals, "silo-01") as at, node(hospitals, "silo-02") as elsewhere:
        await offered(at, signed(new, *real, *fakes.values()))
        await offered(elsewhere, signed(new, *real, *fakes.values()))
        assert not at.succession.counts
        assert elsewhere.succession.counts


async def test_a_node_is_not_given_away_without_its_owner(hospitals: Hospitals) -> None:
    old = load_federation(hospitals.home("hospital-a"))
    new = next_epoch(old, 7)
    silos = tuple(replace(m, owner="hospital-b") if m.name == "silo-01" else m for m in new.silos)
    others = [owner(hospitals, name) for name in ("hospital-b", "hospital-c")]
    async with node(hospitals, "silo-01") as at:
        await offered(at, signed(replace(new, silos=silos), *others))
        assert not at.succession.counts


async def test_a_pin_that_somebody_else_made_does_not_come_along_with_an_epoch(hospitals: Hospitals) -> None:
    old = load_federation(hospitals.home("hospital-a"))
    liar = identity_of(load_node(hospitals.node("silo-03")))
    theirs = newest(hospitals.home("hospital-a"))[-1].pins["silo-02"]
    certificate = newest(hospitals.home("hospital-a"))[-1].pins["silo-03"].current
    forged = replace(theirs, counter=9, current=certificate).signed(liar)
    proposal = replace(signed(next_epoch(old, 7), owner(hospitals, "hospital-c")), pins={"silo-02": forged})
    async with node(hospitals, "silo-01") as at:
        await offered(at, proposal)
        [kept] = at.succession._proposals.values()
        assert kept.pins == {}
        assert at.tls is not None
        assert at.tls.pins is not None
        assert not at.tls.pins.known_by("silo-02", certificate)


async def test_a_node_that_is_started_again_goes_back_to_no_earlier_epoch(hospitals: Hospitals) -> None:
    """Whatever of the past a member shows it: the first epoch, another successor of it, or the present one again."""
    first = load_federation(hospitals.home("hospital-a"))
    owners = [owner(hospitals, o.name) for o in first.owners]
    second, rival = signed(next_epoch(first, 7), *owners), signed(next_epoch(first, 8), *owners)
    config = load_node(hospitals.node("silo-01"))
    second.write(own_place(second, config.state))
    enter(second.federation, config.state)
    require_agreement(load_node(hospitals.node("silo-01")))
    async with node(hospitals, "silo-01") as at:
        assert at.federation == second.federation
        before = newest(hospitals.home("hospital-b"))[0]
        for one in (Proposal(first, before.accepted), rival, second):
            await offered(at, one)
        assert unmoved(at)
        assert at.federation == second.federation
        third = signed(next_epoch(second.federation, 9), *owners[:2])
        await offered(at, third)
        assert at.succession.ready == third.federation.digest
