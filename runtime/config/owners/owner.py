"""An owner's own key, and what an owner looks at before it signs: whether its nodes are listed as it made them."""

from collections.abc import Collection
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.runtime.config.authority import private_pem
from silomix.runtime.config.certificates import load_identity
from silomix.runtime.config.owners.enrol import read_enrolment
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.protocol.federation import Federation, Owner
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.home import ENROLMENT


def owner_identity(name: str, path: Path, *, make: bool = False) -> Identity:
    """Read an owner's key, and make it first if it is not there and may be made."""
    if not path.exists():
        if not make:
            raise ConfigError(path, "", "is not there; give the key that `silomix keygen` made for the owner")
        write_atomically(path, private_pem(Ed25519PrivateKey.generate()))
    return Identity(name, load_identity(path))


def check_own_nodes(federation: Federation, owner: Owner, homes: Path, elsewhere: Collection[str] = ()) -> None:
    """Refuse a federation file that lists a node of this owner otherwise than the owner made it.

    Every owner looks at its own entries, so all entries are looked at. What was made is in the enrolment files.
    """
    for name in federation.owned_by(owner.name):
        if name in elsewhere:
            continue
        path = homes / name / f"{name}{ENROLMENT}"
        if not path.is_file():
            raise ConfigError(
                path,
                "",
                f"is not there, and the federation file lists {name} as yours. If it is not, do not accept; if it is "
                f"on another host of yours, compare its key and give --elsewhere {name}",
            )
        ours, listed = read_enrolment(path), federation.member(name)
        if ours.member != listed:
            what = next(k for k in ("key", "address", "owner", "name") if getattr(ours.member, k) != getattr(listed, k))
            raise ConfigError(
                path,
                what,
                f"the federation file lists another {what} for {name} than you made: do not accept it, and call "
                "whoever wrote it",
            )
        if federation.pinned and ours.owner.key != owner.key:
            raise ConfigError(path, "owner_key", "is another key than the one that you sign with")
