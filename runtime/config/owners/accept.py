"""Agreement: each owner signs the federation file, and a node serves when every owner has.

A signature is a small file, OWNER.accepted, beside the federation file. It covers the file's digest: what a person
agrees to is what the nodes compare.
"""

from pathlib import Path

from silomix.runtime.config.kinds import NAME, SIGNATURE, Key
from silomix.runtime.config.tables import ConfigError, Where, parse, read_text
from silomix.runtime.config.texts import toml
from silomix.runtime.core.errors import Passing
from silomix.runtime.core.protocol.federation import SHOWN, Federation, Owner
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.owners import epoch_digest, not_accepted
from silomix.runtime.core.values import text
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import ACCEPTED

ACCEPTED_KEYS = {
    "owner": Key(NAME, "Who agrees.", required=True),
    "digest": Key(text("64 hex digits of 0-9 and a-f", "[0-9a-f]{64}"), "Of the federation file.", required=True),
    "signature": Key(SIGNATURE, "By the owner's key.", required=True),
}


class NotAccepted(ConfigError, Passing):  # noqa: N818 - what it is
    """Not every owner has agreed to the federation file, or not to this one: nothing is served before they do."""


def accept(federation: Federation, owner: Identity, directory: Path) -> Path:
    """Sign a federation file for its owner, and write the signature beside it."""
    return write_accepted(federation, owner.name, owner.sign(epoch_digest(federation)), directory)


def write_accepted(federation: Federation, owner: str, signature: bytes, directory: Path) -> Path:
    """Write an owner's signature on a federation file."""
    path = directory / f"{owner}{ACCEPTED}"
    lines = [
        f"# {owner} agrees to the federation file with this digest, and to no other.",
        f"owner = {toml(owner)}",
        f"digest = {toml(federation.digest.hex())}",
        f"signature = {toml(signature.hex())}",
    ]
    write_atomically(path, ("\n".join(lines) + "\n").encode(), mode=PUBLIC)
    return path


def read_accepted(directory: Path) -> dict[str, tuple[Path, str, bytes]]:
    """Read the signatures of a directory by their owners: the file, the digest that it names, the signature."""
    found = {}
    for path in sorted(directory.glob(f"*{ACCEPTED}")):
        values = Where(path).take(parse(read_text(path), path), ACCEPTED_KEYS)
        found[values["owner"]] = (path, values["digest"], values["signature"])
    return found


def require_accepted(federation: Federation, directory: Path) -> None:
    """Refuse to go on before every owner has agreed to this very file, and say who has not."""
    found = read_accepted(directory)
    missing, wrong = not_accepted(federation, {owner: signature for owner, (_, _, signature) in found.items()})
    ours = federation.digest.hex()
    if wrong:
        path, theirs, _ = found[wrong[0]]
        other = f"is for the federation file {theirs[:SHOWN]}, and this one is {ours[:SHOWN]}"
        why = other if theirs != ours else "was not made by that owner's key"
        raise NotAccepted(
            path,
            "",
            f"the signature of {wrong[0]} {why}: have {wrong[0]} run `silomix accept` on the file that all have",
        )
    if missing:
        names = ", ".join(missing)
        raise NotAccepted(
            directory,
            "",
            f"{names} {'has' if len(missing) == 1 else 'have'} not accepted the federation file {ours[:SHOWN]}: "
            f"nothing is served before every owner has. `silomix accept` writes {missing[0]}{ACCEPTED}; put it here",
        )


def owner_of(federation: Federation, public: bytes, key_file: Path, previous: Federation | None = None) -> Owner:
    """Find the owner that a key is of, here or in the epoch before, or say that the file does not know it."""
    for owner in (*federation.owners, *(previous.owners if previous else ())):
        if owner.key == public:
            return owner
    raise ConfigError(
        key_file,
        "",
        f"is of none of the owners in the federation file {federation.digest.hex()[:SHOWN]}: somebody else stands "
        "there in your place, or you are not part of it. Do not accept it; call whoever wrote it",
    )
