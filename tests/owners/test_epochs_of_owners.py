"""Owners who change their federation while it runs: each runs only its own commands, and nodes carry the rest."""

from pathlib import Path
from shutil import copytree, move

import pytest
from tests.nodes.federations import until
from tests.owners.hospitals import SERVERS, Apart, Hospitals, free_port, run

from silomix.runtime.cli.federation.history import verify_log
from silomix.runtime.config.load import load_federation, load_node, require_agreement
from silomix.runtime.config.owners.accept import NotAccepted
from silomix.runtime.config.owners.epochs import enter, read_proposal
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.protocol.roundlog import Outcome
from silomix.runtime.nodes import aggregator
from silomix.runtime.nodes.changes import renewal

WAIT_S = 90.0
"""Bound on each thing that the test waits for, on a machine that is busy with others; it fails with what it was."""


def assemble(hospitals: Hospitals, owner: str, number: int, *words: object) -> Path:
    """Let an owner write the next epoch, where its nodes find it once it is moved there."""
    draft = hospitals.place / f"draft-{owner}-{number}"
    enrolled = [word for word in words if isinstance(word, Path)]
    rest = [word for word in words if not isinstance(word, Path)]
    assert run("assemble", draft, *enrolled, "--previous", hospitals.home(owner), *rest) == 0
    return draft


def drop(draft: Path, hospitals: Hospitals, owner: str, place: str) -> Path:
    """Put an epoch's directory beside an owner's federation file."""
    target = hospitals.home(owner) / "epochs" / place
    target.parent.mkdir(exist_ok=True)
    move(draft, target)
    return target


def test_the_next_epoch_is_written_shown_and_signed(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    first = load_federation(hospitals.home("hospital-a"))
    draft = assemble(hospitals, "hospital-a", 2, "--rounds", 7, "--remove", "shuffler-2", "--owners-quorum", 3)
    second = load_federation(draft)
    assert (second.epoch, second.genesis, second.predecessor) == (2, first.digest, first.digest)
    said = capsys.readouterr().out
    for line in ("shuffler shuffler-2 is REMOVED", "policy.rounds: 3 -> 7", "which 2 of 3 owners decide", "2 -> 3"):
        assert line in said
    place = drop(draft, hospitals, "hospital-a", "2")
    assert run("digest", place) == 0
    assert "it takes 2 of them" in capsys.readouterr().out
    assert run("accept", place, "--yes") == 0
    assert "policy.rounds: 3 -> 7" in capsys.readouterr().out
    assert read_proposal(place).accepted.keys() == {"hospital-a"}
    assert run("digest", place) == 0
    said = capsys.readouterr().out
    assert "hospital-a has accepted it" in said
    assert "hospital-b has not accepted it" in said

    # A node that was told to be in it does not serve: too few owners have signed.
    config = load_node(hospitals.node("silo-01"))
    assert config.federation == first
    enter(second, config.state)
    with pytest.raises(NotAccepted, match="is signed by hospital-a: it takes 2 of the 3 owners of epoch 1"):
        require_agreement(load_node(hospitals.node("silo-01")))
    config.state.epoch.write_text("00" * 32)
    with pytest.raises(ConfigError, match="its file is gone"):
        load_node(hospitals.node("silo-01"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--server", "adam"), "changes policy.server"),
        (("--remove", "aggregator"), "cannot be removed"),
        (("--remove", "silo-09"), "cannot be removed"),
        (("--remove", "silo-01"), "silos"),
        (("--owners-quorum", 1), "owners_quorum: found 1; give 2 to 3"),
        (("--name", "other"), "--name"),
        (("--pool", "shuffler-1"), "the pool is shuffler-1"),
    ],
)
def test_what_cannot_follow_is_not_written(
    hospitals: Hospitals, capsys: pytest.CaptureFixture[str], words: tuple[object, ...], says: str
) -> None:
    out = hospitals.place / "draft"
    assert run("assemble", out, "--previous", hospitals.home("hospital-a"), *words) == 2
    assert says in capsys.readouterr().err
    assert not out.exists()


def test_an_epoch_that_lists_a_node_otherwise_than_it_was_made_is_not_accepted(
    hospitals: Hospitals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (hospitals.node("silo-02") / "silo-02.enrol").read_bytes()
    assert run("enrol", "--config", hospitals.node("silo-02"), "--new-identity") == 0
    renewed = (hospitals.node("silo-02") / "silo-02.enrol").read_bytes()
    mail = hospitals.mail / "silo-02.enrol"
    mail.write_bytes(renewed)
    draft = assemble(hospitals, "hospital-a", 2, mail)
    place = hospitals.home("hospital-b") / "epochs" / "2"
    copytree(draft, place)
    (hospitals.node("silo-02") / "silo-02.enrol").write_bytes(before)  # as if somebody else had made it
    assert run("accept", place, "--yes") == 2
    assert "lists another key for silo-02 than you made" in capsys.readouterr().err
    (hospitals.node("silo-02") / "silo-02.enrol").write_bytes(renewed)
    assert run("accept", place, "--yes") == 0
    assert load_node(hospitals.node("silo-02")).identity.name == "identity.key"
    new = load_federation(place)
    assert load_node(hospitals.node("silo-02"), new.digest).identity.name == "next-identity.key"


@pytest.mark.full
async def test_owners_change_a_federation_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quorum that is missing, an owner who has not accepted, two files for one epoch: each is refused, and said."""
    monkeypatch.setattr(renewal, "LOOK_S", 0.1)
    monkeypatch.setattr(renewal, "MEET_S", 0.5)
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    log = tmp_path / "log.txt"
    made = Hospitals(tmp_path / "fresh")
    made.keygen({name: f"127.0.0.1:{free_port()}" for name in SERVERS})
    made.assemble("--rounds", 1000, "--deadline-s", 600)
    made.accept()
    assert run("model", "init", "--config", made.node("aggregator")) == 0

    def said(*words: str) -> bool:
        return any(all(word in line for word in words) for line in log.read_text().splitlines())

    async with Apart(made, log) as running:
        await until(lambda: running.aggregator.core.log.round > 1, "round 1 is over", WAIT_S)

        # Hospital A proposes. Its nodes tell everybody, and one signature of three decides nothing.
        draft = assemble(made, "hospital-a", 2, "--precision", 5)
        second = load_federation(draft)
        assert run("accept", drop(draft, made, "hospital-a", "2"), "--yes") == 0
        kept = f"state/epochs/2-{second.digest.hex()[:16]}"
        for name in ("shuffler-1", "silo-02", "shuffler-2", "silo-03"):
            await until((made.node(name) / kept / "hospital-a.accepted").is_file, f"{name} was offered it", WAIT_S)
        few = "is signed by hospital-a: it takes 2 of the 3 owners"
        await until(lambda: said("silo-03", few), "it says what is missing", WAIT_S)

        # Hospital B finds it at one of its nodes and accepts it there. C has not, and its nodes stay out and say so.
        assert run("accept", made.node("shuffler-1") / kept, "--yes") == 0
        command = f"silomix accept {made.node('shuffler-2') / kept}"
        await until(lambda: said("shuffler-2", "hospital-c has not accepted epoch 2", command), "C is told", WAIT_S)
        await until(lambda: running.aggregator.succession.counts, "it counts at the aggregator", WAIT_S)
        seen = running.aggregator.core.log.round
        await until(lambda: running.aggregator.core.log.round > seen + 1, "rounds go on meanwhile", WAIT_S)
        assert all(node.federation.epoch == 1 for node in running.nodes.values())

        # C runs the very command that it was told.
        assert run(*command.split()[1:], "--yes") == 0
        await until(lambda: all(n.federation == second for n in running.nodes.values()), "all go on in 2", WAIT_S)

        # Two files for epoch 3, each signed by two of three: the second is refused, and who signed both is named.
        one = assemble(made, "hospital-a", 3, "--rounds", 900)
        other = assemble(made, "hospital-a", 33, "--rounds", 800)
        for draft, owners in ((one, ("hospital-a", "hospital-b")), (other, ("hospital-b", "hospital-c"))):
            for owner in owners:
                key = ("--owner-key", made.home(owner) / "owner.key", "--homes", made.home(owner))
                assert run("accept", draft, "--yes", *key) == 0
        third = load_federation(one)
        drop(one, made, "hospital-a", "3")
        await until(
            lambda: all(n.succession.following is not None for n in running.nodes.values()), "all hold it", WAIT_S
        )
        drop(other, made, "hospital-c", "3")
        await until(lambda: said("shuffler-2", "FORK: two files are signed as epoch 3"), "it is said", WAIT_S)
        assert said("FORK", "Both were signed by hospital-b")
        for node in running.nodes.values():
            assert node.succession.following is not None
            assert node.succession.following.federation == third
        log_ = running.aggregator.core.log
        await until(lambda: log_.records[-1].federation == second.digest, "a round of epoch 2 is over", WAIT_S)
        records = log_.records
        assert all(r.outcome is Outcome.APPLIED and len(r.attempts) == 1 for r in records[1:])
    assert verify_log(list(records), load_node(made.node("silo-03")).epochs) == []
    assert run("log", "--config", made.node("silo-03")) == 0
