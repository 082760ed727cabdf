"""What owners and nodes sign outside of rounds: enrolments, agreement to a federation file, pins of certificates.

Each has a digest under a purpose of its own, so that no signature serves twice. Keys come from the enrolment itself,
where possession is what is to be shown, and everywhere else from the federation file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.protocol.federation import Federation, Member, Owner
from silomix.runtime.core.protocol.identity import Identity, verify

FIRST_PIN = 1


@dataclass(frozen=True)
class Pin:
    """By which certificate a node is known, and by which it will be next. Of two pins the higher counter counts.

    Signed by the node: digest("pin", name, counter, current, next).
    """

    name: str
    counter: int
    current: bytes
    """DER; empty in a federation without TLS, or with CAs."""
    next: bytes = b""
    """DER of the certificate that the node is about to use; empty if there is none."""
    signature: bytes = b""

    @property
    def digest(self) -> bytes:
        """What the signature covers."""
        return digest("pin", self.name, self.counter, self.current, self.next)

    @property
    def certificates(self) -> tuple[bytes, ...]:
        """The certificates that open a connection."""
        return (self.current, self.next) if self.next else (self.current,)

    def signed(self, identity: Identity) -> "Pin":
        """Return the same with the node's signature."""
        return replace(self, signature=identity.sign(self.digest))

    def check(self, federation: Federation) -> None:
        """Refuse a pin that the node's identity has not signed."""
        verify(federation.member(self.name).key, self.digest, self.signature, self.name)


@dataclass(frozen=True)
class Enrolment:
    """All that a node's owner tells the others about the node. Nothing in it is secret.

    Signed by the node's identity, which shows that whoever wrote it has that key, and by the owner's, who vouches for
    the node: digest("enrolment", role, name, address, key, owner, owner's key, digest of the pin).
    """

    role: str
    member: Member
    owner: Owner
    pin: Pin
    proof: bytes = b""
    """The node's signature."""
    vouched: bytes = b""
    """The owner's."""

    @property
    def digest(self) -> bytes:
        """What both signatures cover."""
        m, o = self.member, self.owner
        return digest("enrolment", self.role, m.name, m.address, m.key, o.name, o.key, self.pin.digest)

    def signed(self, node: Identity, owner: Identity) -> "Enrolment":
        """Return the same with the signatures of both."""
        made = replace(self, pin=self.pin.signed(node))
        return replace(made, proof=node.sign(made.digest), vouched=owner.sign(made.digest))

    def problem(self) -> str:
        """Say which signature does not hold, or nothing."""
        m, o = self.member, self.owner
        signed = (
            ("pin", m.key, self.pin.digest, self.pin.signature, m.name),
            ("proof", m.key, self.digest, self.proof, m.name),
            ("vouched", o.key, self.digest, self.vouched, o.name),
        )
        for key, public, what, signature, signer in signed:
            try:
                verify(public, what, signature, signer)
            except PeerFault:
                return f"{key}: the signature of {signer} does not fit what the file says"
        return ""


def epoch_digest(federation: Federation) -> bytes:
    """What owners sign: genesis, predecessor, number and content. The first epoch has nothing before it."""
    return digest("epoch", federation.genesis, federation.predecessor, federation.epoch, federation.digest)


def not_accepted(federation: Federation, signatures: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Return the owners whose signature is missing, and those whose signature does not fit this very file."""
    missing, wrong = [], []
    for owner in federation.owners:
        signature = signatures.get(owner.name)
        if signature is None:
            missing.append(owner.name)
            continue
        try:
            verify(owner.key, epoch_digest(federation), signature, owner.name)
        except PeerFault:
            wrong.append(owner.name)
    return missing, wrong


def fingerprint(*keys: bytes) -> str:
    """Return what people read to each other on the phone: 20 hex digits in groups of four, 80 bits."""
    text = digest("fingerprint", *keys).hex()[:20]
    return " ".join(text[i : i + 4] for i in range(0, len(text), 4))
