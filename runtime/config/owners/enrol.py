"""Enrolment: each owner makes its nodes' keys on its own host, and shows others one public file for each node.

Nothing private leaves the directory in which it is made. The file, NODE.enrol, holds the node's role, name and address,
its public keys and its certificate. The node's identity signs it, to show that whoever wrote it has that key, and the
owner's key, which vouches for the node. So nobody can enrol a node in somebody else's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from silomix.runtime.config.authority import CertificateAuthority, private_pem
from silomix.runtime.config.kinds import ADDRESS, CERTIFICATE, NAME, PUBLIC_KEY, SIGNATURE, Key, Role
from silomix.runtime.config.owners.selfsigned import form_problem, pem, self_signed
from silomix.runtime.config.tables import ConfigError, Where, parse, read_text
from silomix.runtime.config.texts import Value, node_text, toml
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.protocol.federation import Member, Owner
from silomix.runtime.core.protocol.identity import Identity, Signer
from silomix.runtime.core.protocol.owners import FIRST_PIN, Enrolment, Pin
from silomix.runtime.core.values import Scalar, one_of
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import (
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    ENROLMENT,
    FEDERATION_FILE,
    IDENTITY_FILE,
    NODE_FILE,
    STATE_DIRECTORY,
)

ENROLMENT_KEYS = {
    "role": Key(one_of(Role), "What the node is.", required=True),
    "name": Key(NAME, "What the node is called.", required=True),
    "address": Key(ADDRESS, "Where others reach it; a silo only dials out.", default=""),
    "key": Key(PUBLIC_KEY, "Signs what the node says.", required=True),
    "owner": Key(NAME, "Whose it is.", required=True),
    "owner_key": Key(PUBLIC_KEY, "Signs what the owner agrees to.", required=True),
    "certificate": Key(CERTIFICATE, "What the node shows on a connection.", default=b""),
    "pin": Key(SIGNATURE, "The node's signature on that certificate.", required=True),
    "proof": Key(SIGNATURE, "The node's signature on all of this.", required=True),
    "vouched": Key(SIGNATURE, "The owner's.", required=True),
}


@dataclass(frozen=True)
class NodeKeys:
    """A node's keys before they are written: they go to one directory and to no other."""

    enrolment: Enrolment
    identity: bytes = field(repr=False)
    """PEM; empty if it is in a token."""
    tls: bytes = field(default=b"", repr=False)
    """PEM; empty without TLS."""
    certificate: bytes = b""
    """PEM; empty without TLS."""

    def write(self, home: Path, settings: Mapping[str, Value], options: Mapping[str, Scalar]) -> Path:
        """Write everything of the node into a new directory; return the file that others are to get."""
        member = self.enrolment.member
        home.mkdir(mode=0o700)
        keys: dict[str, Value] = {
            **settings,
            "role": Role(self.enrolment.role),
            "name": member.name,
            "federation": f"../{FEDERATION_FILE}",
            "directory": STATE_DIRECTORY,
        }
        if self.identity:
            write_atomically(home / IDENTITY_FILE, self.identity)
            keys["identity"] = IDENTITY_FILE
        if self.certificate:
            write_atomically(home / CERTIFICATE_KEY_FILE, self.tls)
            write_atomically(home / CERTIFICATE_FILE, self.certificate, mode=PUBLIC)
            keys |= {"certificate": CERTIFICATE_FILE, "key": CERTIFICATE_KEY_FILE}
        else:
            keys["insecure"] = True
        write_atomically(home / NODE_FILE, node_text(keys, options).encode(), mode=PUBLIC)
        path = home / f"{member.name}{ENROLMENT}"
        write_atomically(path, enrolment_text(self.enrolment).encode(), mode=PUBLIC)
        return path


def make_keys(
    role: Role,
    name: str,
    owner: Identity,
    address: str = "",
    *,
    insecure: bool = False,
    authority: CertificateAuthority | None = None,
    host: str = "",
    token: Signer | None = None,
) -> NodeKeys:
    """Make a node's keys, and its certificate: its own, or one of a CA, also for the host where it is reached.

    The identity is made here, unless a token has it already.
    """
    private = Ed25519PrivateKey.generate()
    identity = Identity(name, token or Secret(private.private_bytes_raw()))
    tls, certificate, pinned = b"", b"", b""
    if not insecure:
        key = ec.generate_private_key(ec.SECP256R1())
        tls = private_pem(key)
        if authority is not None:
            certificate = authority.issue(name, key.public_key(), [host] if host else [])
        else:
            made = self_signed(name, key)
            certificate, pinned = made.public_bytes(Encoding.PEM), made.public_bytes(Encoding.DER)
    enrolment = Enrolment(
        str(role),
        Member(name, identity.public, address, owner.name),
        Owner(owner.name, owner.public),
        Pin(name, FIRST_PIN, pinned),
    ).signed(identity, owner)
    return NodeKeys(enrolment, b"" if token else private_pem(private), tls, certificate)


def enrolment_text(enrolment: Enrolment) -> str:
    """Write what others are told of a node."""
    member, owner = enrolment.member, enrolment.owner
    lines = [
        "# What others are told of a node. Nothing here is secret; whoever changes a word breaks the signatures.",
        f"role = {toml(enrolment.role)}",
        f"name = {toml(member.name)}",
        *([f"address = {toml(member.address)}"] if member.address else []),
        f"key = {toml(member.key.hex())}",
        f"owner = {toml(owner.name)}",
        f"owner_key = {toml(owner.key.hex())}",
    ]
    if enrolment.pin.current:
        lines.append(f'certificate = """\n{pem(enrolment.pin.current).decode()}"""')
    lines += [
        f"pin = {toml(enrolment.pin.signature.hex())}",
        f"proof = {toml(enrolment.proof.hex())}",
        f"vouched = {toml(enrolment.vouched.hex())}",
    ]
    return "\n".join((*lines, ""))


def read_enrolment(path: Path) -> Enrolment:
    """Read an enrolment file, and refuse one that was tampered with."""
    where = Where(path)
    values = where.take(parse(read_text(path), path), ENROLMENT_KEYS)
    role, name, address = values["role"], values["name"], values["address"]
    again = f"have {values['owner']} send it again"
    if (role is Role.SILO) == bool(address):
        problem = "a silo only dials out: remove it" if address else f"missing; give {ADDRESS.allowed}"
        raise where.wrong("address", problem)
    found = Enrolment(
        str(role),
        Member(name, values["key"], address, values["owner"]),
        Owner(values["owner"], values["owner_key"]),
        Pin(name, FIRST_PIN, values["certificate"], b"", values["pin"]),
        values["proof"],
        values["vouched"],
    )
    if problem := found.problem():
        raise ConfigError(path, "", f"{problem}: {again}")
    if values["certificate"] and (problem := form_problem(values["certificate"], name)):
        raise where.wrong("certificate", f"the certificate {problem}: {again}")
    return found
