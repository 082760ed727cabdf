"""The protocol's number, which every call and every answer names, so that nodes of before and after do not mix.

Nodes that differ in it would at best refuse each other's messages for reasons that send people looking in the wrong
place, and at worst understand them differently. Whoever meets another number, or none, takes nothing from that peer and
says which of the two has to be upgraded. Health, greetings and the status are for finding such things out, and are
answered whatever the number.
"""

from collections.abc import Iterable
from typing import Any

from silomix.runtime.core.errors import PeerFault, Reason

PROTOCOL = 4
"""It goes up with every change after which two nodes would not understand each other alike. Before 2 none was named."""
PROTOCOL_NAME = "silomix-protocol"
"""Metadata that names it: of a call, and of the answer."""
SAID = ((PROTOCOL_NAME, str(PROTOCOL)),)
_LONGEST = 9


def difference(word: str, peer: str, here: str = "the node that refuses it") -> tuple[str, str] | None:
    """What is wrong with the number that a peer names, and what to do about it; None if it is the one here."""
    if word == str(PROTOCOL):
        return None
    number = int(word) if word.isascii() and word.isdigit() and len(word) <= _LONGEST else 0
    says = f"speaks protocol {number}" if number else "names no protocol number, as nodes before 2 do"
    older, newest = (here, number) if number > PROTOCOL else (peer, PROTOCOL)
    return f"{peer} {says}, and {here} speaks protocol {PROTOCOL}", f"upgrade {older} to a silomix of protocol {newest}"


def check_protocol(metadata: Iterable[Any] | None, peer: str) -> None:
    """Refuse a peer that names another protocol with its call or its answer, or none."""
    word = dict(metadata or ()).get(PROTOCOL_NAME, "")
    if found := difference(word if isinstance(word, str) else "", peer):
        raise PeerFault(Reason.WRONG_PROTOCOL, ": ".join(found), peer=peer, expected=PROTOCOL)
