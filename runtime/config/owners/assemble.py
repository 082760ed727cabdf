"""Making the federation file of enrolment files and a policy. Whoever does it learns nothing that others may not know.

The order of the files does not matter: nodes are listed by name, but for the pool of shufflers if somebody gives its
order. So every owner can assemble the same files, and gets the same digest.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from silomix.runtime.config.keys import PLACES, POLICY_KEYS
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import parse_federation
from silomix.runtime.config.owners.enrol import read_enrolment
from silomix.runtime.config.owners.pins import write_pin
from silomix.runtime.config.tables import ConfigError, Where, parse, read_text
from silomix.runtime.config.texts import federation_text
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.federation import Federation, Owner
from silomix.runtime.core.protocol.owners import Enrolment
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import ANCHOR_FILE, FEDERATION_FILE


def read_enrolments(paths: Iterable[Path]) -> list[Enrolment]:
    """Read enrolment files, and name the first that cannot be used."""
    files: dict[str, Path] = {}
    found = []
    for path in paths:
        enrolment = read_enrolment(path)
        if (other := files.setdefault(enrolment.member.name, path)) != path:
            raise ConfigError(path, "name", f"found {enrolment.member.name!r}, which {other} enrols too; keep one")
        found.append(enrolment)
    return found


def read_policy(path: Path) -> dict[str, Any]:
    """Read the keys of a policy: a table [policy] in a file of its own, or in a federation file."""
    where = Where(path, places=PLACES)
    table = parse(read_text(path), path).get("policy")
    if not isinstance(table, dict):
        raise where.wrong("policy", "missing; give a table [policy], as a federation file has it")
    values = where.under("policy").take(table, POLICY_KEYS)
    return {name: value for name, value in values.items() if name in table}


def assemble(
    enrolments: Sequence[Enrolment],
    *,
    name: str,
    policy: Policy,
    file: Path,
    pool: Sequence[str] = (),
    anchor: bytes = b"",
    insecure: bool = False,
    owners_quorum: int = 0,
) -> Federation:
    """Make a federation of its members. Errors name the file that it is going to be.

    pool    the shufflers in the order in which bodies pass them; by default that of their names
    anchor  certificates of the owners' CAs, if nodes do not pin each other's own
    """
    where = Where(file)
    by_role: dict[str, list[Enrolment]] = {str(role): [] for role in Role}
    for enrolment in sorted(enrolments, key=lambda e: e.member.name):
        by_role[enrolment.role].append(enrolment)
    if (found := len(by_role[Role.AGGREGATOR])) != 1:
        raise where.wrong("aggregator", f"found {found} enrolments of one; give exactly one")
    if pool:
        there = {e.member.name: e for e in by_role[Role.SHUFFLER]}
        if sorted(pool) != sorted(there):
            raise where.wrong("shufflers", f"the pool is {', '.join(pool)}, and enrolled are {', '.join(there)}")
        by_role[Role.SHUFFLER] = [there[shuffler] for shuffler in pool]
    pinned = not anchor and not insecure
    for enrolment in enrolments:
        if pinned and not enrolment.pin.current:
            problem = f"{enrolment.member.name} has no certificate; have {enrolment.owner.name} make its keys with one"
            raise where.wrong("tls", problem)
    federation = Federation(
        name=name,
        aggregator=by_role[Role.AGGREGATOR][0].member,
        shufflers=tuple(e.member for e in by_role[Role.SHUFFLER]),
        silos=tuple(e.member for e in by_role[Role.SILO]),
        policy=policy,
        anchor=anchor,
        pinned=pinned,
        owners=_owners(where, enrolments),
        owners_quorum=owners_quorum,
    )
    return checked(federation, file)


def _owners(where: Where, enrolments: Iterable[Enrolment]) -> tuple[Owner, ...]:
    owners: dict[str, Owner] = {}
    for enrolment in enrolments:
        owner = enrolment.owner
        if owners.setdefault(owner.name, owner) != owner:
            raise where.wrong(
                "owners",
                f"two keys call themselves {owner.name}, one of them for {enrolment.member.name}: call {owner.name} "
                "and find out which is theirs",
            )
    return tuple(sorted(owners.values(), key=lambda owner: owner.name))


def checked(federation: Federation, file: Path) -> Federation:
    """Read back what would be written, by the rules of loading."""
    return parse_federation(federation_text(federation), file, federation.anchor)


def write_federation(federation: Federation, enrolments: Iterable[Enrolment], directory: Path) -> Path:
    """Write the public files of a federation: its nodes' pins, and last of all the file that all pin."""
    directory.mkdir(parents=True, exist_ok=True)
    if federation.pinned:
        for enrolment in enrolments:
            write_pin(enrolment.pin, directory)
    dump_federation(federation, directory / FEDERATION_FILE)
    return directory / FEDERATION_FILE


def dump_federation(federation: Federation, path: Path) -> None:
    """Write a federation file with every policy key explained, and its trust anchor beside it.

    What is written is read back by the rules of loading first, so an invalid federation leaves no file.
    """
    checked(federation, path)
    if federation.anchor:
        write_atomically(path.parent / ANCHOR_FILE, federation.anchor, mode=PUBLIC)
    write_atomically(path, federation_text(federation).encode(), mode=PUBLIC)
