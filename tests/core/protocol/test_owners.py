"""Section 5, what owners and nodes sign outside of rounds: a signature that does not fit is found out."""

from dataclasses import replace
from typing import Any

import pytest
from tests.core.protocol.federations import federation, flipped, identity

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Member, Owner
from silomix.runtime.core.protocol.owners import FIRST_PIN, Enrolment, Pin, epoch_digest, not_accepted

F = replace(federation(), owners=tuple(Owner(name, identity(f"owner {name}").public) for name in ("a", "b", "c")))
PIN = Pin("hop-1", FIRST_PIN, b"current", b"next").signed(identity("hop-1"))
HOP = Member("hop-1", identity("hop-1").public, "h0:1", "a")
ENROLMENT = Enrolment("shuffler", HOP, F.owners[0], replace(PIN, signature=b"")).signed(
    identity("hop-1"), identity("owner a")
)
ACCEPTED = {owner.name: identity(f"owner {owner.name}").sign(epoch_digest(F)) for owner in F.owners}


def refused(pin: Pin) -> Reason:
    with pytest.raises(PeerFault) as caught:
        pin.check(F)
    return caught.value.reason


# Pins


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "hop-2"},
        {"counter": 2},
        {"current": b"other"},
        {"next": b""},
        {"signature": flipped(PIN.signature)},
        {"signature": b""},
    ],
)
def test_a_pin_that_its_node_has_not_signed_is_refused(changes: dict[str, Any]) -> None:
    PIN.check(F)
    assert refused(replace(PIN, **changes)) is Reason.BAD_SIGNATURE


def test_nobody_else_signs_a_pin() -> None:
    assert refused(PIN.signed(identity("hop-2"))) is Reason.BAD_SIGNATURE
    assert refused(replace(PIN, name="nobody")) is Reason.UNKNOWN_PEER


# Enrolments


@pytest.mark.parametrize(
    ("changes", "which"),
    [
        ({"pin": replace(ENROLMENT.pin, signature=bytes(64))}, "pin"),
        ({"pin": replace(ENROLMENT.pin, current=b"other")}, "pin"),
        ({"proof": ENROLMENT.vouched}, "proof"),
        ({"vouched": ENROLMENT.proof}, "vouched"),
        ({"vouched": b""}, "vouched"),
        ({"role": "silo"}, "proof"),
        ({"member": replace(HOP, name="hop-2")}, "proof"),
        ({"member": replace(HOP, address="elsewhere:1")}, "proof"),
        ({"member": replace(HOP, key=identity("hop-2").public)}, "pin"),
        ({"owner": replace(F.owners[0], name="b")}, "proof"),
        ({"owner": F.owners[1]}, "proof"),
    ],
)
def test_an_enrolment_says_which_signature_does_not_hold(changes: dict[str, Any], which: str) -> None:
    assert ENROLMENT.problem() == ""
    altered = replace(ENROLMENT, **changes)
    signer = altered.owner.name if which == "vouched" else altered.member.name
    assert altered.problem() == f"{which}: the signature of {signer} does not fit what the file says"


# Agreement


def test_owners_who_have_not_signed_or_signed_something_else_are_told_apart() -> None:
    assert not_accepted(F, ACCEPTED) == ([], [])
    assert not_accepted(F, {}) == (["a", "b", "c"], [])
    some = {"a": ACCEPTED["a"], "b": ACCEPTED["a"]}  # in another's name
    assert not_accepted(F, some) == (["c"], ["b"])
    assert not_accepted(F, {**ACCEPTED, "c": identity("owner c").sign(F.digest)}) == ([], ["c"])


def test_an_owners_signature_holds_for_one_file() -> None:
    assert not_accepted(replace(F, name="another"), ACCEPTED) == ([], ["a", "b", "c"])
