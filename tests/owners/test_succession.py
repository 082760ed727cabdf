"""What a node makes of the epochs that owners and peers bring it: who has to sign, and what is kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.owners.hospitals import Hospitals, run
from tests.owners.test_epochs_of_owners import assemble, drop

from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.owners.accept import accept
from silomix.runtime.config.owners.epochs import Proposal, read_proposal
from silomix.runtime.config.owners.owner import owner_identity
from silomix.runtime.config.owners.successor import newest, policy_after, succeed
from silomix.runtime.core.protocol.owners import epoch_digest
from silomix.runtime.local import make_node
from silomix.runtime.net.limits import MOST_EPOCHS
from silomix.runtime.net.meeting import write_epoch
from silomix.runtime.nodes.changes.epochs import MOST_EACH
from silomix.runtime.nodes.node import Node


@asynccontextmanager
async def node(hospitals: Hospitals, name: str) -> AsyncIterator[Node]:
    """A node that takes in what it is shown, and serves nobody."""
    made = make_node(load_node(hospitals.node(name)))
    try:
        yield made
    finally:
        await made.close()


def sign(hospitals: Hospitals, draft: Path, *owners: str) -> None:
    for owner in owners:
        key = ("--owner-key", hospitals.home(owner) / "owner.key", "--homes", hospitals.home(owner))
        assert run("accept", draft, "--yes", *key) == 0


async def test_an_epoch_counts_with_a_quorum_and_ones_own_owner_and_a_second_one_is_a_fork(
    hospitals: Hospitals, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = assemble(hospitals, "hospital-c", 2, "--rounds", 7)
    other = assemble(hospitals, "hospital-c", 22, "--rounds", 8)
    for one in (draft, other):
        sign(hospitals, one, "hospital-b")
    place = drop(draft, hospitals, "hospital-c", "2")
    second = load_federation(place)
    async with node(hospitals, "shuffler-2") as hop:

        async def looks() -> str:
            capsys.readouterr()
            await hop.succession.look()
            return capsys.readouterr().err

        assert "is signed by hospital-b: it takes 2 of the 3 owners" in await looks()
        sign(hospitals, place, "hospital-a")
        said = await looks()
        kept = hop.config.state.epochs / f"2-{second.digest.hex()[:16]}"
        assert f"hospital-c has not accepted epoch 2, {second.digest.hex()[:16]}, and this node stays out" in said
        assert f"`silomix accept {kept}`" in said
        assert not hop.succession.counts
        assert await looks() == ""  # once
        assert run("accept", kept, "--yes") == 0  # the command that it was told
        assert "epoch 2 counts here" in await looks()
        assert hop.succession.ready == second.digest

        sign(hospitals, other, "hospital-c")
        drop(other, hospitals, "hospital-c", "22")
        said = await looks()
        assert "FORK: two files are signed as epoch 2" in said
        assert "Both were signed by hospital-b, hospital-c" in said
        assert hop.succession.following is not None
        assert hop.succession.following.federation == second

    # A node that is started again holds on to the same one, in whatever order it finds them.
    async with node(hospitals, "shuffler-2") as hop:
        await hop.succession.look()
        assert hop.succession.ready == second.digest
        assert "FORK" in capsys.readouterr().err


async def test_an_owner_who_signs_ever_more_files_holds_no_other_file_up(hospitals: Hospitals, tmp_path: Path) -> None:
    """Each greeting has room for few: a file that somebody else has signed still reaches everybody."""
    history = newest(hospitals.home("hospital-b"))
    old = history[-1].federation

    def signed(owner: str, rounds: int) -> Proposal:
        new = succeed(old, [], policy=policy_after(old.policy, {"rounds": rounds}), file=tmp_path)
        place = tmp_path / f"{owner}-{rounds}"
        Proposal(new).write(place)
        accept(new, owner_identity(owner, hospitals.home(owner) / "owner.key"), place)
        found = read_proposal(place)
        return Proposal(found.federation, found.accepted)

    junk = [signed("hospital-c", 100 + i) for i in range(12)]
    real = signed("hospital-b", 7)
    async with node(hospitals, "silo-01") as at:
        take = at.succession._offered
        for one in junk[:6]:
            await take("silo-03", write_epoch(one))
        await take("silo-02", write_epoch(real))
        for one in junk[6:]:
            await take("silo-03", write_epoch(one))
        held = [one.federation.policy.rounds for one in at.succession._proposals.values()]
        assert 7 in held
        assert sorted(held) == [7, *(100 + i for i in range(12 - MOST_EACH, 12))]
        kept = {path.name for path in at.config.state.epochs.glob("2-*")}
        assert len(kept) == 1 + MOST_EACH  # nor does the disk fill up
        offered = [at.succession.offers(old.digest)[:MOST_EPOCHS] for _ in range(len(held))]
        assert {one.federation.policy.rounds for few in offered for one in few} == set(held)  # each in its turn

        # What more than one owner wants is nobody's to push out, and neither is what one's own owner has signed.
        own = signed("hospital-a", 9)
        both = Proposal(junk[11].federation, junk[11].accepted | _also(hospitals, junk[11]))
        for one in (own, signed("hospital-a", 10), signed("hospital-a", 11), both, *junk[:4]):
            await take("silo-03", write_epoch(one))
        held = [one.federation.policy.rounds for one in at.succession._proposals.values()]
        assert {7, 9, 10, 11, 111} <= set(held)
        assert len(held) == 5 + MOST_EACH


def _also(hospitals: Hospitals, proposal: Proposal) -> dict[str, bytes]:
    key = owner_identity("hospital-b", hospitals.home("hospital-b") / "owner.key")
    return {"hospital-b": key.sign(epoch_digest(proposal.federation))}
