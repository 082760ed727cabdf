"""Owners who do not trust each other: what is tampered with is refused, and whoever is at fault is named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.config.written import edit
from tests.owners.hospitals import NODES, TASK, Hospitals, run

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import identity_of, load_federation, load_node, require_agreement
from silomix.runtime.config.owners.accept import NotAccepted, accept
from silomix.runtime.config.owners.enrol import enrolment_text, make_keys, read_enrolment
from silomix.runtime.config.owners.pins import load_pins
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.owners import epoch_digest, fingerprint


def stranger(name: str) -> Identity:
    return Identity(name, Secret(Ed25519PrivateKey.generate().private_bytes_raw()))


def private_parts(directory: Path) -> set[bytes]:
    """The secrets below a directory: what stands between the lines of each private key."""
    return {line for path in directory.rglob("*.key") for line in path.read_bytes().splitlines()[1:-1]}


def test_three_owners_agree_and_no_key_leaves_its_owner(hospitals: Hospitals) -> None:
    for owner in NODES:
        secrets = private_parts(hospitals.home(owner))
        assert len(secrets) >= 2 * len(NODES[owner]) + 1
        others = [path for path in hospitals.place.rglob("*") if path.is_file()]
        for path in others:
            if not path.is_relative_to(hospitals.home(owner)):
                assert not [secret for secret in secrets if secret in path.read_bytes()], path
    digests = set()
    for owner, nodes in NODES.items():
        for name in nodes:
            config = load_node(hospitals.home(owner) / name)
            require_agreement(config)
            digests.add(config.federation.digest)
    assert len(digests) == 1


def test_every_owner_who_assembles_gets_the_same_digest(hospitals: Hospitals, tmp_path: Path) -> None:
    files = sorted(hospitals.mail.glob("*.enrol"), reverse=True)
    assert run("assemble", tmp_path / "again", *files, "--name", "hospitals", *TASK, "--rounds", 3) == 0
    assert load_federation(tmp_path / "again").digest == load_federation(hospitals.home("hospital-a")).digest


def test_what_a_first_epoch_lacks_is_named(
    hospitals: Hospitals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(hospitals.mail.glob("*.enrol"))
    assert run("assemble", tmp_path / "new", *files, *TASK) == 2
    assert "--name: missing" in capsys.readouterr().err
    assert run("assemble", tmp_path / "new", "--name", "hospitals", *TASK) == 2
    assert "no .enrol file was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('role = "silo"', 'role = "shuffler"\naddress = "evil.example.org:1"', "proof: the signature of silo-02"),
        ('name = "silo-02"', 'name = "silo-09"', "pin: the signature of silo-09"),
        ('owner = "hospital-b"', 'owner = "hospital-c"', "have hospital-c send it again"),
        ('key = "', f'key = "{bytes(1).hex()}', "64 hex digits"),
        ('proof = "', 'proof = "00', "128 hex digits"),
    ],
)
def test_a_tampered_enrolment_file_is_refused_and_its_owner_named(
    hospitals: Hospitals, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    edit(hospitals.mail / "silo-02.enrol", old, new)
    files = sorted(hospitals.mail.glob("*.enrol"))
    assert run("assemble", tmp_path / "new", *files, "--name", "hospitals", *TASK) == 2
    found = capsys.readouterr().err
    assert says in found
    assert "silo-02.enrol" in found
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("field", ["proof", "vouched", "pin"])
def test_each_signature_of_an_enrolment_is_checked(hospitals: Hospitals, field: str) -> None:
    """Swapped for one that the same key made of something else."""
    file = hospitals.mail / "silo-02.enrol"
    found = read_enrolment(file)
    identity = identity_of(load_node(hospitals.node("silo-02")))
    spoilt = identity.sign(b"something else")
    if field == "pin":
        wrong = replace(found, pin=replace(found.pin, signature=spoilt))
    else:
        wrong = replace(found, proof=spoilt) if field == "proof" else replace(found, vouched=spoilt)
    file.write_text(enrolment_text(wrong))
    with pytest.raises(ConfigError, match=f"{field}: the signature of"):
        read_enrolment(file)


def test_nobody_enrols_a_node_in_somebody_elses_name(
    hospitals: Hospitals, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two keys that call themselves hospital-b: the file names both nodes, and a person finds out."""
    made = make_keys(Role.SILO, "silo-04", stranger("hospital-b"))
    (hospitals.mail / "silo-04.enrol").write_text(enrolment_text(made.enrolment))
    files = sorted(hospitals.mail.glob("*.enrol"))
    assert run("assemble", tmp_path / "new", *files, "--name", "hospitals", *TASK) == 2
    assert "two keys call themselves hospital-b, one of them for silo-04" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_owner_who_has_not_accepted_keeps_everybody_out(hospitals: Hospitals) -> None:
    for owner in NODES:
        (hospitals.home(owner) / "hospital-c.accepted").unlink()
    for name in ("silo-03", "shuffler-1"):
        with pytest.raises(NotAccepted, match="hospital-c has not accepted the federation file"):
            require_agreement(load_node(hospitals.node(name)))
    hospitals.accept("hospital-c")
    require_agreement(load_node(hospitals.node("silo-03")))


def test_a_policy_that_was_changed_after_signing_is_refused(hospitals: Hospitals) -> None:
    edit(hospitals.home("hospital-b") / "federation.toml", "rounds = 3", "rounds = 4")
    with pytest.raises(NotAccepted, match="the signature of hospital-a is for the federation file") as caught:
        require_agreement(load_node(hospitals.node("silo-02")))
    assert len(set(re.findall("[0-9a-f]{16}", str(caught.value)))) == 2  # both digests


def test_a_signature_by_another_key_is_refused(hospitals: Hospitals) -> None:
    home = hospitals.home("hospital-b")
    accept(load_federation(home), stranger("hospital-c"), home)
    with pytest.raises(NotAccepted, match="the signature of hospital-c was not made by that owner's key"):
        require_agreement(load_node(hospitals.node("silo-02")))


def test_a_nodes_own_signature_is_not_its_owners(hospitals: Hospitals) -> None:
    """A broken-into node cannot agree to anything in its owner's name."""
    home = hospitals.home("hospital-c")
    node = identity_of(load_node(hospitals.node("silo-03")))
    accept(load_federation(home), replace(node, name="hospital-c"), home)
    with pytest.raises(NotAccepted, match="not made by that owner's key"):
        require_agreement(load_node(hospitals.node("silo-03")))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("key", "lists another key for silo-02"),
        ("address", "lists another address for shuffler-1"),
        ("added", "lists silo-09 as yours"),
        ("owner key", "is of none of the owners"),
    ],
)
def test_an_owner_signs_nothing_that_lists_its_nodes_otherwise(
    hospitals: Hospitals, capsys: pytest.CaptureFixture[str], change: str, says: str
) -> None:
    """Whoever assembles can write what they like: each owner looks at its own entries."""
    home = hospitals.home("hospital-b")
    federation = load_federation(home)
    file = home / "federation.toml"
    other = stranger("x").public.hex()
    if change == "key":
        edit(file, federation.member("silo-02").key.hex(), other)
    elif change == "address":
        edit(file, federation.member("shuffler-1").address, "evil.example.org:1")
    elif change == "owner key":
        edit(file, federation.owners[1].key.hex(), other)
    else:
        more = f'\n[[silos]]\nname = "silo-09"\nkey = "{other}"\nowner = "hospital-b"\n'
        file.write_text(file.read_text() + more)
        text = file.read_text().replace("pinned = true", "insecure = true")  # so that no pin is missed first
        file.write_text(text)
    if change == "key":
        text = file.read_text().replace("pinned = true", "insecure = true")
        file.write_text(text)
    (home / "hospital-b.accepted").unlink()
    capsys.readouterr()
    assert run("accept", home, "--yes") == 2
    assert says in capsys.readouterr().err
    assert not (home / "hospital-b.accepted").exists()


def test_what_is_shown_before_signing(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    home = hospitals.home("hospital-b")
    federation = load_federation(home)
    capsys.readouterr()
    assert run("accept", home, "--yes") == 0
    shown = capsys.readouterr().out
    for owner in federation.owners:
        assert f"key {fingerprint(owner.key)}" in shown
    for member in federation.members.values():
        assert f"key {fingerprint(member.key)}" in shown
    assert "hospital-b (you)" in shown
    assert "rounds = 3" in shown
    assert "holds against 1 that collude with the aggregator, and needs all 2" in shown
    assert federation.digest.hex() in shown.replace(" ", "")


def test_nobody_signs_by_accident(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    home = hospitals.home("hospital-b")
    (home / "hospital-b.accepted").unlink()
    assert run("accept", home) == 2
    assert "give --yes" in capsys.readouterr().err
    assert not (home / "hospital-b.accepted").exists()


def test_digest_says_who_has_accepted(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    home = hospitals.home("hospital-b")
    (home / "hospital-c.accepted").unlink()
    (home / "hospital-a.accepted").write_text(
        (home / "hospital-a.accepted").read_text().replace('signature = "', 'signature = "00', 1)[:-4] + '"\n'
    )
    capsys.readouterr()
    assert run("digest", home) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == load_federation(home).digest.hex()
    assert shown[1:] == [
        "hospital-a has accepted another file",
        "hospital-b has accepted it",
        "hospital-c has not accepted it",
    ]


def test_keygen_never_overwrites(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    before = (hospitals.node("silo-02") / "identity.key").read_bytes()
    assert run("keygen", hospitals.node("silo-02"), "--role", "silo", "--owner", "hospital-b") == 2
    assert "never overwritten" in capsys.readouterr().err
    assert (hospitals.node("silo-02") / "identity.key").read_bytes() == before


def test_an_epoch_is_signed_by_number_and_content(hospitals: Hospitals) -> None:
    federation = load_federation(hospitals.home("hospital-a"))
    assert epoch_digest(federation) != epoch_digest(replace(federation, epoch=2))
    assert epoch_digest(federation) != federation.digest
    assert federation.digest != replace(federation, epoch=2).digest
    edit(hospitals.home("hospital-a") / "federation.toml", "epoch = 1", "epoch = 2")
    with pytest.raises(ConfigError, match="genesis: missing; `silomix assemble --previous`"):
        load_federation(hospitals.home("hospital-a"))


def test_a_pin_that_its_node_did_not_sign_is_refused(hospitals: Hospitals) -> None:
    home = hospitals.home("hospital-b")
    federation = load_federation(home)
    edit(home / "silo-03.pin", "counter = 1", "counter = 2")
    with pytest.raises(ConfigError, match=r"the signature of silo-03 .* have hospital-c send silo-03\.pin again"):
        load_node(hospitals.node("silo-02"))
    (home / "silo-03.pin").unlink()
    with pytest.raises(ConfigError, match=r"there is no silo-03\.pin"):
        require_agreement(load_node(hospitals.node("silo-02")))
    pins = load_pins(federation, hospitals.home("hospital-a"))
    pin = pins.get("silo-03")
    assert pin is not None
    with pytest.raises(PeerFault, match="the signature of silo-03"):
        pins.take(replace(pin, counter=5))
    assert not pins.take(pin)
