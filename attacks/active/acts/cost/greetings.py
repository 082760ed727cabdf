"""R7: what members say when they greet one another, before anybody knows what to make of it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from silomix.attacks.active.acts.casts import SILO
from silomix.attacks.active.liars.member import ANSWER_S, Member
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, HOSTILE, Stage
from silomix.runtime.config.authority import CERTIFICATE_DAYS, blank
from silomix.runtime.config.owners.epochs import Proposal
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.meeting import MEET, SERVICE, greeting
from silomix.v1 import member_pb2

WATCHED_S = 1.0
_TLS_FEATURE = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.24")
_FEATURE_99 = bytes.fromhex("3003020163")
"""A feature of TLS that there is not: the library looks it up in a table, and raises what no reader expects."""


def unreadable(name: str) -> bytes:
    """Make a self-signed certificate that cannot be read to its end."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = blank(who, who, key.public_key(), datetime.now(UTC), CERTIFICATE_DAYS)
    made = made.add_extension(x509.UnrecognizedExtension(_TLS_FEATURE, _FEATURE_99), critical=False)
    return made.sign(key, SHA256()).public_bytes(Encoding.DER)


async def _greet(us: Member, target: str, proposal: Proposal) -> None:
    call: Any = us.line(target).unary_unary(f"/{SERVICE.full_name}/{MEET.name}")
    said = member_pb2.MeetRequest(greeting=greeting(us.federation, (), (proposal,)))
    await us.ask(target, lambda: call(said.SerializeToString(), timeout=ANSWER_S))


@attack("unreadable-certificate", Rule.R7, "silo-06", Outcome.USELESS, SILO)
async def unreadable_certificate(stage: Stage) -> Loot:
    """A silo brings an epoch that nobody has signed, and in it a certificate of its own that no library reads."""
    us, old = stage.member(HOSTILE), stage.federation
    pin = Pin(us.name, 2, unreadable(us.name)).signed(us.identity)
    new = replace(old, epoch=old.epoch + 1, genesis=old.first, predecessor=old.digest)
    await _greet(us, FIRST, Proposal(new, {}, {us.name: pin}))
    await stage.within(WATCHED_S, stage.dead)
    dead = stage.dead()
    return stage.loot(bool(dead), f"{', '.join(dead) or 'no process'} ended", ended=len(dead))
